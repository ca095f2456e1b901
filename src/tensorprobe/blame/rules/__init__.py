"""The rules by which a call is suspected, each with the evidence that it finds."""
