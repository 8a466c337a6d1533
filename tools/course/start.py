"""`pdm run start-course [folder]`: writes the learner's source tree."""

import argparse
import sys
from pathlib import Path

from .reading import table
from .tree import ROOT, VARIABLE, default_folder, display_path, is_tree, starter_files


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, or 2 if the folder must not be written to."""
    parser = argparse.ArgumentParser(prog="start-course", description=__doc__)
    parser.add_argument(
        "folder",
        nargs="?",
        type=lambda text: Path(text).expanduser().resolve(),
        default=default_folder(),
        help="folder to create (mine/)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing learner's tree")
    parser.add_argument(
        "--lines", action="store_true", help="only print how many lines a day has to read and write"
    )
    args = parser.parse_args(argv)
    if args.lines:
        print("\n".join(table()))
        return 0
    folder: Path = args.folder
    if folder == ROOT or ROOT.is_relative_to(folder) or (ROOT / "src").resolve() in folder.parents:
        print(
            f"start-course: {folder} overlaps the solution; give another folder.", file=sys.stderr
        )
        return 2
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not args.force:
            what = "has your work" if is_tree(folder) else "is not empty"
            print(
                f"start-course: {folder} {what}; give another folder, or --force to overwrite the "
                "course's files in it.",
                file=sys.stderr,
            )
            return 2
        if not is_tree(folder):
            print(
                f"start-course: {folder} is not empty and not a learner's tree; --force only "
                "overwrites learner's trees. Give another folder.",
                file=sys.stderr,
            )
            return 2
    write_tree(folder)
    print(
        f"wrote {display_path(folder)}: begin with {display_path(folder)}/README.md, then "
        "`pdm run test --week 1 --day 1`"
    )
    if folder != default_folder():
        print(f"for the other commands to find it: export {VARIABLE}={folder}")
    return 0


def write_tree(folder: Path) -> None:
    """Writes a new learner's source tree; identical files keep their mtime."""
    for path, text in starter_files(folder).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
