"""Rewrites flat Metal text to C++ for clang, preserving line numbers.

Each function does one rewrite. The remaining syntax of Metal, mainly address spaces, is defined by
the macros and types of msl/*.h.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from . import source
from .errors import Diagnostic
from .signature import Signature, read_signatures

SCALARS = "char|uchar|short|ushort|int|uint|long|ulong|half|bfloat|float|bool"
NOT_METAL = re.compile(
    r"\b(double|new|delete|throw|try|catch|virtual|dynamic_cast|typeid|goto|thread_local)\b"
)


@dataclass(frozen=True)
class KernelFunction:
    """A kernel's host name and its C++ function, such as `scale<float>`."""

    host_name: str
    function: str
    signature: Signature


@dataclass
class Rewritten:
    """C++ text, its kernels, and the errors found."""

    text: str
    kernels: list[KernelFunction] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def error(self, offset: int, message: str) -> None:
        """Adds an error at the source line of the character at `offset` in the current text."""
        self.diagnostics.append(Diagnostic(*source.location(self.text, offset), message))

    def replace(
        self, pattern: str, replacement: Callable[[re.Match[str]], str], flags: int = 0
    ) -> None:
        """Replaces each match; the replacement must have as many newlines as the match."""
        self.text = re.sub(pattern, replacement, self.text, flags=flags)


def rewrite(flat: str, constants: Mapping[int | str, object]) -> Rewritten:
    """Rewrites preprocessed Metal to C++. `constants` are function constants by index or name."""
    code = Rewritten(flat)
    _reject_unsupported_cpp(code)
    signatures, diagnostics = read_signatures(flat)
    code.diagnostics += diagnostics
    _collect_kernels(code, signatures)
    _instantiate(code, {signature.name: signature for _, signature in signatures})
    _set_function_constants(code, constants)
    _drop_attributes(code)
    _place_threadgroup_variables(code)
    _array_parameters(code)
    _vector_constructors(code)
    _mark_thread_members(code)
    _drop_qualified_members(code)
    _copyable_structs(code)
    code.replace(r"\bconstant\s+mlx::os_log\b", lambda m: "static const mlx::os_log")
    return code


def _reject_unsupported_cpp(code: Rewritten) -> None:
    """Rejects C++ that Metal does not have but clang accepts."""
    for match in NOT_METAL.finditer(code.text):
        line = code.text[code.text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if not line.lstrip().startswith("#"):
            code.error(match.start(), f"Metal has no '{match[1]}'")


def _collect_kernels(code: Rewritten, signatures: list[tuple[int, Signature]]) -> None:
    """Collects non-template kernels; the default host name is the function's name."""
    for offset, signature in signatures:
        before = code.text[max(0, offset - 400) : offset]
        if re.search(r"template\s*<[^;{}]*>\s*(?:\[\[[^;{}]*\]\]\s*)?$", before):
            continue
        name = re.search(r'host_name\s*\(\s*"([^"]*)"\s*\)\s*\]\]\s*$', before)
        host_name = name[1] if name else signature.name
        code.kernels.append(KernelFunction(host_name, signature.name, signature))


def _instantiate(code: Rewritten, signatures: Mapping[str, Signature]) -> None:
    """Rewrites template instances with a host name: `template [[host_name("x")]] … f<T> …;`."""

    def instance(match: re.Match[str]) -> str:
        host_name = "".join(re.findall(r'"([^"]*)"', match[1]))
        declaration = re.sub(r"\[\[.*?\]\]", "", match[2], flags=re.DOTALL).strip()
        declaration = re.sub(r"^kernel\s+", "", declaration)
        if declaration.startswith("decltype"):
            opening = declaration.index("(")
            function = declaration[
                opening + 1 : source.closing_bracket(declaration, opening) - 1
            ].strip()
        else:
            named = re.match(r"void\s+(\w+)\s*(?=<)", declaration)
            end = source.closing_bracket(declaration, named.end()) if named else -1
            function = declaration[named.start(1) : end] if named and end > 0 else declaration
        name = re.match(r"\w*", function)
        signature = signatures.get(name[0] if name else "")
        if signature is None:
            code.error(match.start(), f"host_name {host_name}: unknown kernel template {function}")
            return source.newlines(match[0])
        code.kernels.append(KernelFunction(host_name, function, signature))
        # The instance stays on the declaration's line, where its errors are reported.
        return f"template decltype({function}) {function};" + source.newlines(match[0])

    strings = r'((?:"[^"]*"\s*)+)'
    code.replace(
        rf"template\s*\[\[\s*host_name\s*\(\s*{strings}\)\s*\]\]\s*([^;]*);", instance, re.DOTALL
    )


def _set_function_constants(code: Rewritten, constants: Mapping[int | str, object]) -> None:
    """Replaces function constants, set at pipeline creation in Metal, by compile-time constants."""
    defined: set[str] = set()

    def constant(match: re.Match[str]) -> str:
        kind, name, index = match[1], match[2], int(match[3])
        value = constants.get(index, constants.get(name))
        if value is not None:
            defined.add(name)
        literal = str(value).lower() if isinstance(value, bool) else str(value or 0)
        return f"constant constexpr {kind} {name} = ({kind})({literal});" + source.newlines(
            match[0]
        )

    code.replace(
        r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\s*\(\s*(\d+)\s*\)\s*\]\]\s*;",
        constant,
    )
    code.replace(
        r"\bis_function_constant_defined\s*\(\s*(\w+)\s*\)",
        lambda m: "true" if m[1] in defined else "false",
    )


def _drop_attributes(code: Rewritten) -> None:
    """Removes attributes, which earlier rewrites have evaluated."""
    code.replace(r"\[\[(?:[^\[\]]|\[[^\[\]]*\])*\]\]", lambda m: source.blank_out(m[0]))
    code.replace(r"(^|[;{}>\s])kernel(?=\s+void\b)", lambda m: m[1] + "      ", re.MULTILINE)


THREADGROUP_VARIABLE = re.compile(
    r"((?:[;{}]|^\#[^\n]*\n)\s*)threadgroup\s+"  # previous statement's end
    r"((?:const\s+)?(?:typename\s+)?[A-Za-z_][\w:]*(?:\s*<[^;{}()]*?>)?)\s+"  # its type
    r"((?:\w+\s*(?:\[[^;]*?\]\s*)*,?\s*)+)"  # names with array sizes
    r"(=[^;]*)?;",
    re.MULTILINE,
)


def _place_threadgroup_variables(code: Rewritten) -> None:
    """Rewrites `threadgroup float x[8];` to a reference to the runtime's threadgroup memory."""
    number = 0

    def variable(match: re.Match[str]) -> str:
        nonlocal number
        if match[4]:
            code.error(match.start(2), "a threadgroup variable cannot have an initializer")
        statements = []
        for _, declarator in source.split(match[3]):
            name, sizes = re.match(r"\s*(\w+)\s*(.*?)\s*$", declarator, re.DOTALL).groups()  # type: ignore[union-attr]
            number += 1
            sizes = sizes.replace("\n", " ")
            kind = f"msl_type_{number}"
            statements += [
                f"typedef {match[2]} {kind}{sizes};",
                f"threadgroup {kind}& {name} = *(threadgroup {kind}*)msl_threadgroup_variable(",
                f'{number}, "{name}", sizeof({kind}), alignof({kind}), msl::Site::here());',
            ]
        return match[1] + " ".join(statements) + source.newlines(match[0][len(match[1]) :])

    # Runs twice, because the matches of two adjacent declarations overlap in their semicolon.
    for _ in range(2):
        code.text = THREADGROUP_VARIABLE.sub(variable, code.text)


def _array_parameters(code: Rewritten) -> None:
    """Rewrites a parameter `device T x[]` as a pointer, because clang rejects the array form."""
    space = r"(?:const\s+)?(?:constant|device|threadgroup)\s+(?:const\s+)?\w+"
    code.replace(
        rf"(?<=[(,])(\s*)({space})\s+(\w+)\s*\[\w*\](?=\s*[,)])", lambda m: f"{m[1]}{m[2]}* {m[3]}"
    )


def _vector_constructors(code: Rewritten) -> None:
    """Rewrites `float4(x, y, z, w)` and `vec<T, 4>(…)` to calls of msl::make."""
    names = set(re.findall(r"\busing\s+(\w+)\s*=\s*(?:metal::)?vec\s*<", code.text))
    names |= set(re.findall(r"\btypedef\s+(?:metal::)?vec\s*<[^;]*>\s*(\w+)\s*;", code.text))
    vectors = "|".join([rf"(?:{SCALARS})[234]", *sorted(names)])

    def declared(match: re.Match[str]) -> str:  # `float4 v(a, b);`
        end = source.closing_bracket(code.text, match.end() - 1)
        arguments = code.text[match.end() : end - 1]
        is_function = re.fullmatch(r"\s*|(?:\s*[A-Za-z_][\w:]*[\s&*]+\w+\s*,?)+", arguments)
        if is_function or not re.match(r"\s*;", code.text[end:]):
            return match[0]
        return f"{match[1]}{match[2]} {match[3]} = msl::make<{match[2]}>("

    code.replace(rf"([;{{}}]\s*(?:const\s+)?)({vectors})\s+(\w+)\s*\(", declared)
    code.replace(
        rf"(?<![\w.])(?:metal::)?({vectors})\s*\((?!\s*\*)(?=[^)])", lambda m: f"msl::make<{m[1]}>("
    )

    chunks, done = [], 0
    for match in re.finditer(r"\b(?:metal::)?vec\s*<", code.text):
        end = source.closing_bracket(code.text, match.end() - 1) if match.start() >= done else -1
        before = code.text[max(0, match.start() - 12) : match.start()]
        if end < 0 or "\n" in code.text[match.start() : end] or re.search(r"operator\s*$", before):
            continue
        if re.match(r"\s*\(", code.text[end:]):
            chunks += [
                code.text[done : match.start()],
                f"msl::make<{code.text[match.start() : end]}>",
            ]
            done = end
    code.text = "".join(chunks) + code.text[done:]


def _mark_thread_members(code: Rewritten) -> None:
    """Replaces `thread` in `T f() const thread` by an attribute, as C++ lacks it."""
    code.replace(
        r"(\)\s*(?:const\s+)?)thread(\s*(?:noexcept\s*)?)(?=[:{;])",
        lambda m: f'{m[1]}{m[2]}__attribute__((annotate("thread")))',
    )


def _drop_qualified_members(code: Rewritten) -> None:
    """Removes `T f() const threadgroup {…}`, as C++ has no address space qualifiers of `this`."""
    pattern = re.compile(
        r"\)\s*(?:const\s+)?(?:threadgroup|device|constant)\s*(?:noexcept\s*)?(?=[:{])"
    )
    while match := pattern.search(code.text):
        depth, start = 0, match.start()
        while start >= 0:
            character = code.text[start]
            depth += (character in ")]") - (character in "([")
            if character in ";{}" and depth == 0:
                break
            start -= 1
        body = code.text.index("{", match.end())
        end = source.closing_bracket(code.text, body)
        code.text = (
            code.text[: start + 1] + source.blank_out(code.text[start + 1 : end]) + code.text[end:]
        )


def _copyable_structs(code: Rewritten) -> None:
    """Adds assignment between address spaces to structs: see msl/structs.h."""

    def struct(match: re.Match[str]) -> str:
        name = match[1]
        body = code.text[match.end() : source.closing_bracket(code.text, match.end() - 1)]
        has_constructor = re.search(rf"(?<![\w~.>:]){name}\s*\(", body)
        return f"{match[0]} MSL_STRUCT({name})" + (
            f" MSL_CONSTRUCT({name})" if has_constructor else ""
        )

    code.replace(
        r"\b(?:struct|class)\s+(?:alignas\s*\((?:[^()]|\([^()]*\))*\)\s*)?(\w+)\s*(?:<[^;{}]*>)?"
        r"\s*(?:final\s*)?(?::[^;{}]*)?\{",
        struct,
    )
