"""One module a kind of machine: from a variant to the files of its kernel."""
