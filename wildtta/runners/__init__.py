"""Ways to execute a method's pure step."""
