"""MLX's macOS wheel: headers (MLX's and metal-cpp's) and libmlx.dylib."""

import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

# The oldest macOS version that MLX publishes a wheel for.
MACOS = "14.0"


def macos_wheel(work: Path) -> Path | None:
    """Downloads the macOS wheel of the installed MLX version and unpacks it into `work`.

    Omits the compiled Metal kernels (100 MB). Returns the folder of the package `mlx`, or None if
    the download fails.
    """
    folder = work / f"mlx-{version('mlx')}"
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--dest", str(work), "--disable-pip-version-check", "--only-binary=:all:"]
        command += ["--platform", f"macosx_{MACOS.replace('.', '_')}_arm64"]
        command += [f"mlx-metal=={version('mlx')}"]
        if subprocess.run(command, check=False, capture_output=True).returncode != 0:
            return None
        (file,) = work.glob(f"mlx_metal-{version('mlx')}-*.whl")
        with zipfile.ZipFile(file) as wheel:
            names = [name for name in wheel.namelist() if not name.endswith(".metallib")]
            wheel.extractall(folder.with_suffix(".part"), names)
        file.unlink()
        folder.with_suffix(".part").rename(folder)
    return folder / "mlx"
