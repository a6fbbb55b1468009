"""Blocks and who holds them: pool, block table, prefix cache, storage (chapters 2 to 4)."""
