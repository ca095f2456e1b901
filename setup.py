"""Build the compiled files of tensorprobe; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "tensorprobe.metrics._kernel",
            [f"src/tensorprobe/metrics/{name}.c" for name in ("_kernel", "_pair", "_errors")],
            depends=[
                "src/tensorprobe/_measuring.h",
                "src/tensorprobe/metrics/_kernel.h",
                "src/tensorprobe/metrics/_pair_lanes.h",
            ],
            # The stable ABI: one build serves every Python from 3.10 on.
            py_limited_api=True,
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            extra_compile_args=["-O3", "-fno-math-errno"],
            # No compiler, no kernel: the install succeeds and numpy does the work.
            optional=True,
        ),
        Extension(
            "tensorprobe.capture._calls",
            [
                f"src/tensorprobe/capture/{name}.c"
                for name in (
                    "_calls",
                    "_pending_tensors",
                    "_frames",
                    "_fast_recorder",
                    "_gradients",
                    "_graph",
                    "_modules",
                    "_records",
                    "_write_pool",
                    "_write_pool_work",
                    "_values",
                )
            ],
            depends=[
                "src/tensorprobe/capture/_calls.h",
                "src/tensorprobe/capture/_write_pool.h",
                "src/tensorprobe/_exchange.h",
                "src/tensorprobe/_measuring.h",
                "src/tensorprobe/_sides.h",
            ],
            py_limited_api=True,
            define_macros=[("Py_LIMITED_API", "0x030A0000")],
            extra_compile_args=["-O3", "-fvisibility=hidden"],
            optional=True,
        ),
        *(
            Extension(
                f"tensorprobe.{name}",
                [f"src/tensorprobe/{name.replace('.', '/')}.c"],
                depends=[
                    "src/tensorprobe/_digits.h",
                    "src/tensorprobe/_exchange.h",
                    "src/tensorprobe/_sides.h",
                ],
                py_limited_api=True,
                define_macros=[("Py_LIMITED_API", "0x030A0000")],
                extra_compile_args=["-O3"],
                optional=True,
            )
            for name in (
                "_crc32",
                "compare._plain_rows",
                "report._row_text",
                "store._entry_text",
                "store._leaf_walk",
                "store._zip_open",
                "summary._launch",
            )
        ),
    ],
)
