"""The command line: a thin tree of commands over the HTTP client and the local stack."""
