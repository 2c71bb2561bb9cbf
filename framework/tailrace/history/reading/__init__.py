"""The past of an app as it is stored: stretches of topics, changelogs and tapes, where a task begins, and how it is driven."""
