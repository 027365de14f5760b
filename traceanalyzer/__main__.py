"""`python -m traceanalyzer` is the same as the `traceanalyzer` command."""

from traceanalyzer.cli.main import main

if __name__ == "__main__":
    main()
