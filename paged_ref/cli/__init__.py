"""The commands of `python -m paged_ref`: modules with `add_arguments(parser)` and `run(arguments) -> exit status`."""
