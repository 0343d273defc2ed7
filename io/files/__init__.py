"""Files of a party: written atomically, tagged, secret, and local or shared and sealed."""
