"""The part of a printed module that compiles and loads its C++, as text."""

BUILD = '''FUNCTIONS = {functions}  # name: numbers of tensors and of extents

_loaded = None


def build():
    """Compiles CPP with the system compiler and loads it; the files are gone afterwards."""
    import ctypes
    import os
    import shutil
    import subprocess
    import tempfile

    global _loaded
    wanted = [os.environ.get("CXX"), "c++", "g++", "clang++"]
    compiler = next((path for path in map(shutil.which, filter(None, wanted)) if path), None)
    if compiler is None:
        raise RuntimeError("build failed: no C++ compiler; install g++ or set CXX")
    with tempfile.TemporaryDirectory() as folder:
        source, library = os.path.join(folder, "kernel.cpp"), os.path.join(folder, "kernel.so")
        with open(source, "w") as file:
            file.write(CPP)
        command = [compiler, "-O3", "-march=native", "-std=c++17", "-fopenmp", "-shared", "-fPIC"]
        command += ["-fno-math-errno", "-fno-trapping-math"]
        command += [f"-D{{name}}={{value}}" for name, value in CONFIG.items()]
        command += [source, "-o", library, "-lm"]
        vectors = ["-lmvec"]  # glibc's vector math, where there is one
        done = subprocess.run(command + vectors, capture_output=True, text=True)
        if done.returncode and "mvec" in done.stderr:
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"build failed: {{done.stderr[-4000:]}}")
        loaded = ctypes.CDLL(library)
    for name, (tensors, extents) in FUNCTIONS.items():
        taken = [ctypes.c_void_p] * tensors + [ctypes.c_int64] * extents + [ctypes.c_int]
        getattr(loaded, name).argtypes = taken
        getattr(loaded, name).restype = None
    _loaded = loaded


def library():
    """The compiled kernels; built at first use."""
    if _loaded is None:
        build()
    return _loaded'''
