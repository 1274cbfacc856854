"""What a run costs in privacy: events, accountants, statements, audit."""
