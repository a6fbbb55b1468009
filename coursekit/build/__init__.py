"""From the sources in `curriculum/` to executed notebooks."""
