"""Where values live: all places in this process (`local`), or one process per place (`processes`)."""
