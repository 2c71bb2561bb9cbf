"""The past of an app as it is stored: stretches, changelogs, tapes; where a task begins, how it is driven."""
