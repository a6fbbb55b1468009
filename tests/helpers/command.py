"""Run a command module of `paged_ref.cli` or `bench` as its command line would."""

import argparse
from types import ModuleType


def run(module: ModuleType, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(arguments)))
