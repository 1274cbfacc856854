"""What the papers call resilient, judged again by attackers who know the defense."""
