"""The command line: typer commands that parse options and call one function."""
