"""How a Triton function is launched: its sizes from CONFIG, its grid, its scratch memory."""

from collections.abc import Callable, Sequence

from kerntree.coder.emit.triton import TritonFunction


def open_sizes(functions: Sequence[TritonFunction]) -> list[str]:
    """The sizes that CONFIG holds for a function printed for these cases; the rest are fixed."""
    choices = [function.tiles.choices for function in functions]
    return [s for s in choices[0] if len({c[s] for c in choices}) > 1 or len(choices[0][s]) > 1]


def launch_lines(
    functions: Sequence[TritonFunction],
    arguments: Sequence[str],
    *,
    device: str,
    extent: str,
    entry: Callable[[str], str],
) -> list[str]:
    """Statements that launch a function on tensors (their names in order).

    `functions` is the one function with the tiles of each case that it serves, `extent` its
    outermost extent where that is an argument, and `entry` where CONFIG holds a size.
    """
    function = functions[0]
    at_run_time = function.rows_each > 0
    rows = str(function.rows)
    if at_run_time:
        rows = f"{extent} * {function.rows_each}" if function.rows_each > 1 else extent
    left_open = open_sizes(functions)

    def size(name: str) -> str:
        return entry(name) if name in left_open else str(function.tiles.choices[name][0])

    flat = not function.columns or "ROWS" not in function.tiles.choices
    lines: list[str] = []
    given = list(arguments)
    sizes: dict[str, str] = {}
    if flat:
        tiles = _divided_up(rows, size("BLOCK"))
    elif function.tiles.split:
        lines += _parts(function, size, sizes)
        given += _scratch(function, rows, device, lines)
        tiles = f"{rows} * parts"
    else:
        of_tile = size("ROWS")
        tiles = rows if of_tile == "1" else _divided_up(rows, of_tile)
    given += [extent] * function.takes_rows
    grid = tiles
    if function.persist and not function.tiles.split:
        lines.append(f"tiles = {tiles}")
        grid = f"min(tiles, {size('PROGRAMS')} * processors({device}))"
        if at_run_time:
            given.append("tiles")
        else:
            sizes["TILES"] = "tiles"
    if not flat and function.tiles.largest("ROWS") > 1:
        sizes["ROWS"] = size("ROWS")
    for name in ("BLOCK", "STAGES"):
        if name in function.tiles.choices:
            sizes[name] = size(name)
    sizes["num_warps"] = size("WARPS")
    named = ", ".join(f"{name}={value}" for name, value in sizes.items())
    if function.tiles.split:
        lines.append(f"tensors = ({', '.join(given)})")
        lines.append(f"sizes = dict({named})")
        lines.append(f"check_room({function.name}, parts, tensors, sizes)")
        lines.append(f"{function.name}[({grid},)](*tensors, **sizes)")
        return lines
    lines.append(f"{function.name}[({grid},)](")
    lines.append(f"    {', '.join([*given, named])}")
    lines.append(")")
    return lines


def _divided_up(count: str, size: str) -> str:
    """A quotient rounded up, as an expression: triton.cdiv takes 2 us, a third of a small call."""
    return f"-(-{count} // {size})"


def _parts(
    function: TritonFunction, size: Callable[[str], str], sizes: dict[str, str]
) -> list[str]:
    """Statements that say how many programs share a row, and how much of it each takes."""
    columns, block = function.columns, size("BLOCK")
    lines = []
    if "PARTS" in function.tiles.choices:
        lines.append(f"parts = {size('PARTS')}")
        lines.append(f"chunk = triton.cdiv(triton.cdiv({columns}, {block}), parts) * {block}")
        lines.append(f"parts = triton.cdiv({columns}, chunk)")
        sizes["CHUNK"] = "chunk"
    else:
        lines.append(f"parts = triton.cdiv({columns}, {block})")
    sizes |= {"PARTS": "parts", "WIDTH": "triton.next_power_of_2(parts)"}
    return lines


def _scratch(function: TritonFunction, rows: str, device: str, lines: list[str]) -> list[str]:
    """The tensors through which programs that share a row hand over and count each other."""
    given = []
    for dtype, slots in function.scratch.items():
        count = f"{slots} * {rows}" if slots > 1 else rows
        lines.append(
            f"parts_{dtype} = torch.empty({count} * parts, dtype=torch.{dtype}, device={device})"
        )
        given.append(f"parts_{dtype}")
    count = f"{function.meetings} * {rows}" if function.meetings > 1 else rows
    lines.append(f"arrived = torch.zeros(1 + {count}, dtype=torch.int32, device={device})")
    return [*given, "arrived"]


PROCESSORS = '''def processors(device):
    """How many programs run at once on a device at least."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count'''

ROOM = '''_room = {}


def check_room(kernel, parts, tensors, sizes):
    """Programs that wait for each other must all be running; raises where there is no room."""
    device = tensors[0].device
    key = (kernel, device, *sizes.values())
    if key not in _room:
        _room[key] = processors(device) * programs_on_each(kernel, tensors, sizes)
    if parts > _room[key]:
        raise RuntimeError(f"{parts} programs share a row, and {device} runs {_room[key]} at once")


def programs_on_each(kernel, tensors, sizes):
    """How many programs fit on one processor by their registers, threads and shared memory."""
    if tensors[0].device.type != "cuda":
        return 1
    compiled = kernel.warmup(*tensors, grid=(1,), **sizes)
    compiled._init_handles()
    device = torch.cuda.get_device_properties(tensors[0].device)
    threads = 32 * sizes["num_warps"]
    registers = triton.cdiv(max(compiled.n_regs, 16), 8) * 8 * threads
    shared = compiled.metadata.shared + 1024
    return min(
        device.regs_per_multiprocessor // registers,
        device.max_threads_per_multi_processor // threads,
        device.shared_memory_per_multiprocessor // shared,
    )'''
