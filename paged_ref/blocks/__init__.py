"""Blocks and their bookkeeping: pool, block table, prefix cache, storage (chapters 2 to 4)."""
