"""`tailrace dev`: the worker and the page of an app while its code is written, restarted when it changes."""
