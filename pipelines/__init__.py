"""The jobs that a party runs, one file each. Read these first."""
