"""``python -m graphfed``: the command line."""

import sys

from graphfed.cli import main

sys.exit(main())
