"""Prints the table in docs/python.md of the names that `thalweg.cuda` leaves out, from the list in the package."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import thalweg  # noqa: E402


def main():
    by_reason = {}
    for name, reason in thalweg.cuda._LEFT_OUT.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    print("| left out | because |\n|---|---|")
    for reason, names in by_reason.items():
        print(f"| {', '.join(names)} | {reason} |")


if __name__ == "__main__":
    main()
