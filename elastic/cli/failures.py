"""Put failures outside of a command into one line that says what failed, why, and what to do.

Any other failure is a bug of ours, and shows its traceback.
"""

from __future__ import annotations

import errno

DISK = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room within your quota",
    errno.EROFS: "the disk is read-only; choose another folder with --data-dir",
    errno.EACCES: "you may not use it; change its rights or choose another folder with --data-dir",
    errno.EPERM: "you may not use it; change its rights or choose another folder with --data-dir",
}


def said(error: BaseException, server: str = "") -> str | None:
    """Return the line for this failure; None if no command expects it."""
    from elastic.client.errors import ElasticError
    from elastic.kube.access import AccessError
    from elastic.kube.errors import KubeError
    from elastic.local.files import FolderError

    if isinstance(error, BaseExceptionGroup):
        lines = [said(one, server) for one in error.exceptions]
        return None if None in lines else "; ".join(dict.fromkeys(line for line in lines if line))
    if isinstance(error, KubeError):
        return error.words
    if isinstance(error, AccessError | ElasticError | FolderError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"no answer in time: {error or 'the API server is too slow or cannot be reached'}"
    return _of_connection(error) if isinstance(error, OSError) else _of_http(error)


def _of_connection(error: OSError) -> str | None:
    if error.errno in DISK and error.filename is not None:
        return f"{error.filename}: {error.strerror}; {DISK[error.errno]}"
    if error.errno in DISK:
        return f"{error.strerror}; {DISK[error.errno]}"
    if isinstance(error, ConnectionError) or _is_http(error):
        return f"the connection to the API server was lost: {error}"
    if error.errno == errno.ENOENT and error.filename is None:
        return "the folder in which this command was typed is gone; change to another one"
    return f"{error.filename}: {error.strerror}" if error.filename is not None else None


def _of_http(error: BaseException) -> str | None:
    return f"the connection to the API server was lost: {error or type(error).__name__}" if _is_http(error) else None


def _is_http(error: BaseException) -> bool:
    return any(cls.__module__.partition(".")[0] == "aiohttp" for cls in type(error).__mro__)
