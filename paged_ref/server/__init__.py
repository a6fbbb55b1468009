"""An OpenAI-compatible server with a live page of the pool (the extra `serve`; docs/server.md)."""
