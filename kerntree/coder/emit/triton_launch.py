"""How a Triton function is launched: its sizes from CONFIG, its grid, its scratch memory."""

from collections.abc import Sequence

from kerntree.coder.emit.triton import TritonFunction


def tunable(function: TritonFunction, size: str, *, alone: bool) -> str:
    """The name of a size among the module's tunables; a kernel that is `alone` needs no suffix."""
    return size if alone else f"{size}_{function.name.removeprefix('kernel_')}"


def launch_lines(
    function: TritonFunction, arguments: Sequence[str], *, device: str, alone: bool
) -> list[str]:
    """Statements that launch a function on tensors (their names in order)."""

    def size(name: str) -> str:
        choices = function.tiles.choices[name]
        if len(choices) == 1:
            return str(choices[0])
        return f'CONFIG["{tunable(function, name, alone=alone)}"]'

    flat = not function.columns or "ROWS" not in function.tiles.choices
    lines: list[str] = []
    given = list(arguments)
    sizes: dict[str, str] = {}
    if flat:
        tiles = f"triton.cdiv({function.rows}, {size('BLOCK')})"
    elif function.tiles.split:
        parts = "PARTS" in function.tiles.choices
        columns = function.columns
        block = size("BLOCK")
        lines.append(f"parts = {size('PARTS') if parts else f'triton.cdiv({columns}, {block})'}")
        if parts:
            lines.append(f"chunk = triton.cdiv(triton.cdiv({columns}, {block}), parts) * {block}")
            lines.append(f"parts = triton.cdiv({columns}, chunk)")
            sizes["CHUNK"] = "chunk"
        for dtype, slots in function.scratch.items():
            lines.append(
                f"parts_{dtype} = torch.empty({slots * function.rows} * parts, "
                f"dtype=torch.{dtype}, device={device})"
            )
            given.append(f"parts_{dtype}")
        count = 1 + function.meetings * function.rows
        lines.append(f"arrived = torch.zeros({count}, dtype=torch.int32, device={device})")
        given.append("arrived")
        tiles = f"{function.rows} * parts"
        sizes |= {"PARTS": "parts", "WIDTH": "triton.next_power_of_2(parts)"}
    else:
        rows = size("ROWS")
        tiles = str(function.rows) if rows == "1" else f"triton.cdiv({function.rows}, {rows})"
    grid = tiles
    if function.persist and not function.tiles.split:
        lines.append(f"tiles = {tiles}")
        sizes["TILES"] = "tiles"
        grid = f"min(tiles, {size('PROGRAMS')} * processors({device}))"
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
