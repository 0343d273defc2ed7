"""Agree on a run by files that members send each other: invitations, replies, proposals."""
