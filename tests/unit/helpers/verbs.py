"""A verb of `vllm-balance`, in the process of the test."""

import argparse


def run(verb: object, *arguments: str) -> None:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)  # type: ignore[attr-defined]
    verb.run(parser.parse_args(arguments))  # type: ignore[attr-defined]
