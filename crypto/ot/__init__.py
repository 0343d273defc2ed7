"""Oblivious transfer: base OTs, IKNP, silent OT, random OTs."""
