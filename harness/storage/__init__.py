"""What comes from files and goes into them: read with bounds and checked, written whole or not at all."""
