"""What a party runs. Composition only; read these first."""
