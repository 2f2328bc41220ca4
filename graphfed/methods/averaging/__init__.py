"""One program for all methods that average what clients have trained, and the rules that it follows."""
