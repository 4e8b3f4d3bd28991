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
        lines.append(f"together({device}, parts)")
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
    for name in ("ROWS", "BLOCK", "STAGES"):
        if name in function.tiles.choices and not (flat and name == "ROWS"):
            sizes[name] = size(name)
    sizes["num_warps"] = size("WARPS")
    named = ", ".join(f"{name}={value}" for name, value in sizes.items())
    lines.append(f"{function.name}[({grid},)](")
    lines.append(f"    {', '.join([*given, named])}")
    lines.append(")")
    return lines


PROCESSORS = '''def processors(device):
    """How many programs run at once on a device at least."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count'''

TOGETHER = '''def together(device, parts):
    """Programs that wait for each other must all be running; there is a place for one on each
    processor of the device."""
    if parts > processors(device):
        raise RuntimeError(f"{parts} programs share a row, and {device} runs fewer at once")'''
