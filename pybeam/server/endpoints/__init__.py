"""The endpoints, one family a file."""
