"""Interprets enough of Python for tests of the fake runner, without a process.

It knows ``print(...)`` (also ``file=sys.stderr``), literals, names and assignment, f-strings without format, ``+``,
``input``, ``getpass.getpass``, ``time.sleep``, ``os.environ[...]``, ``os._exit``, ``open(path).read()``, ``open(path,
"w").write(text)``, ``import``, ``raise SystemExit(n)``, ``while True``, ``for x in range(n)`` and division. Anything
else is a NameError of the program.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any


class ProgramDied(Exception):
    """Raised when a fake program ends its own process."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ProgramError(Exception):
    """Raised for an exception of the fake program. The message is the last line of its traceback."""


@dataclass(slots=True)
class ProgramContext:
    """Holds the files, input and output that a fake program can reach."""

    write: Callable[[str, str], None]
    ask: Callable[[bool], Awaitable[str]]
    environ: Mapping[str, str]
    files: MutableMapping[str, bytes]
    home: str = "/home/work"

    def path(self, name: str) -> str:
        return name if name.startswith("/") else f"{self.home}/{name}"


class Program:
    """Interprets a small subset of Python in memory. Its globals remain from one run to the next, as in query mode."""

    def __init__(self, context: ProgramContext) -> None:
        self._world = context
        self._names: dict[str, Any] = {}

    async def run(self, code: str) -> None:
        """Runs Python code of the toy subset. Raises ProgramError, ProgramDied."""
        try:
            tree = ast.parse(code)
        except SyntaxError as e:
            raise ProgramError(f"SyntaxError: {e.msg}") from None
        await self._run_block(tree.body)

    async def _run_block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            await self._run_statement(statement)

    async def _run_statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Pass():
                pass
            case ast.Expr(value=value):
                await self._evaluate(value)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._names[name] = await self._evaluate(value)
            case ast.While(test=ast.Constant(value=True), body=body):
                while True:
                    await asyncio.sleep(0)
                    await self._run_block(body)
            case ast.For(target=ast.Name(id=name), iter=iterable, body=body):
                for item in await self._evaluate(iterable):
                    self._names[name] = item
                    await asyncio.sleep(0)
                    await self._run_block(body)
            case ast.Raise(exc=ast.Call(func=ast.Name(id="SystemExit"), args=args)):
                exit_arguments = [await self._evaluate(argument) for argument in args]
                raise ProgramDied(exit_arguments[0] if exit_arguments else 0)
            case ast.Raise(exc=ast.Call(func=ast.Name(id=error), args=args)):
                argument_texts = [str(await self._evaluate(argument)) for argument in args]
                raise ProgramError(f"{error}: {', '.join(argument_texts)}")
            case _:
                raise ProgramError(f"NotImplementedError: {ast.unparse(node)}")

    async def _evaluate(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                if name not in self._names:
                    raise ProgramError(f"NameError: name {name!r} is not defined")
                return self._names[name]
            case ast.JoinedStr(values=values):
                return "".join([str(await self._evaluate(value_node)) for value_node in values])
            case ast.FormattedValue(value=value):
                return await self._evaluate(value)
            case ast.BinOp(left=left, op=op, right=right):
                return self._apply_operator(op, await self._evaluate(left), await self._evaluate(right))
            case ast.Subscript(value=ast.Attribute(attr="environ"), slice=key):
                return self._read_variable(await self._evaluate(key))
            case ast.Call():
                return await self._evaluate_call(node)
            case _:
                raise ProgramError(f"NotImplementedError: {ast.unparse(node)}")

    def _read_variable(self, name: str) -> str:
        if name not in self._world.environ:
            raise ProgramError(f"KeyError: {name!r}")
        return self._world.environ[name]

    def _apply_operator(self, operator: ast.operator, left: Any, right: Any) -> Any:
        match operator:
            case ast.Add():
                return left + right
            case ast.Mult():
                return left * right
            case ast.Div() if right == 0:
                raise ProgramError("ZeroDivisionError: division by zero")
            case ast.Div():
                return left / right
            case _:
                raise ProgramError(f"NotImplementedError: {type(operator).__name__}")

    async def _evaluate_call(self, node: ast.Call) -> Any:
        function_name = ast.unparse(node.func)
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
            return await self._evaluate_file_call(node.func.value, node.func.attr, node.args)
        args = [await self._evaluate(argument) for argument in node.args]
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        match function_name:
            case "print":
                stream_name = ast.unparse(keywords["file"]) if "file" in keywords else "sys.stdout"
                output_text = " ".join(map(str, args)) + "\n"
                self._world.write("stderr" if stream_name == "sys.stderr" else "stdout", output_text)
                return None
            case "input" | "getpass.getpass":
                if args:
                    self._world.write("stdout", str(args[0]))
                return await self._world.ask(function_name != "input")
            case "time.sleep":
                return await asyncio.sleep(args[0])
            case "os._exit" | "sys.exit" | "exit":
                raise ProgramDied(int(args[0]) if args else 0)
            case "range":
                return range(*args)
            case _:
                raise ProgramError(f"NameError: name {function_name!r} is not defined")

    async def _evaluate_file_call(self, open_call: ast.Call, method: str, args: list[ast.expr]) -> Any:
        if ast.unparse(open_call.func) != "open":
            raise ProgramError(f"this fake interpreter calls methods of open() only, not of {ast.unparse(open_call)}")
        path = self._world.path(await self._evaluate(open_call.args[0]))
        if method == "write":
            written_text = str(await self._evaluate(args[0]))
            self._world.files[path] = written_text.encode()
            return len(written_text)
        if path not in self._world.files:
            raise ProgramError(f"FileNotFoundError: [Errno 2] No such file or directory: {path!r}")
        return self._world.files[path].decode()
