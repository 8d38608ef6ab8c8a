"""Files to documents: each format, each encoding, and what is broken or hostile."""

from __future__ import annotations

import contextlib
import json
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lancelot
import lancelot_reading
from lancelot_reading import IgnoredError, Section, UnreadableError, read_document


def read(name: str, content: bytes | str) -> lancelot_reading.Document:
    return read_document(name, content.encode() if isinstance(content, str) else content)


def titles(document: lancelot_reading.Document) -> list[str]:
    return [section.title for section in document.sections]


def refusal(name: str, content: bytes | str) -> str:
    with pytest.raises(UnreadableError) as caught:
        read(name, content)
    return str(caught.value)


def pdf_of(objects: list[str], trailer: str) -> bytes:
    """A PDF of these objects, numbered from 1."""
    out, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    start, size = len(out), len(objects) + 1
    end = f"trailer << /Size {size} {trailer} >>\nstartxref\n{start}\n%%EOF\n"
    return out + f"xref\n0 {size}\n0000000000 65535 f \n{table}{end}".encode()


def make_pdf(*pages: str, title: str = "", outline: tuple[str, ...] = ()) -> bytes:
    """A PDF of these pages, each one line; blank ones hold no text. The outline names them, each below the one before."""
    last = 4 + 2 * len(pages)
    objects = [f"<< /Type /Catalog /Pages 2 0 R {f'/Outlines {last + 1} 0 R' if outline else ''} >>"]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>")
    objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for number, text in enumerate(pages):
        content = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET" if text else ""
        resources = f"/Resources << /Font << /F1 3 0 R >> >> /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R"
        objects.append(f"<< /Type /Page /Parent 2 0 R {resources} >>")
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    objects.append(f"<< /Title ({title}) >>")
    objects += [f"<< /First {last + 2} 0 R >>"] if outline else []
    for number, name in enumerate(outline):
        objects.append(f"<< /Title ({name}) /Dest [{4 + 2 * number} 0 R /Fit] /First {last + 3 + number} 0 R >>")
    return pdf_of(objects, f"/Root 1 0 R /Info {last} 0 R")


def shown(*lines: tuple[float, float, float, str]) -> str:
    """A page of `make_pdf` with these lines of text: the size of their type, their place from left and foot, their words."""
    return ") Tj " + "".join(f"/F1 {size} Tf 1 0 0 1 {x} {y} Tm ({text}) Tj " for size, x, y, text in lines) + "("


SCAN = ") Tj ET BI /W 1 /H 1 /CS /G /BPC 8 ID x EI BT ("


# Markdown and reStructuredText


def test_markdown_is_cut_at_headings_of_both_kinds_with_their_path() -> None:
    text = "intro\n\n# One\na\n## Two ##\nb\n```\n# no heading\n```\nThree\n=====\nc\n\nFour\n---\nd\n"
    document = read("a.md", text)
    assert titles(document) == ["", "One", "One > Two", "Three", "Three > Four"]
    assert [section.line for section in document.sections] == [1, 3, 5, 10, 14]
    assert "# no heading" in document.sections[2].text
    assert "\n".join(section.text for section in document.sections) == text


def test_the_title_of_front_matter_is_that_of_text_without_a_heading() -> None:
    document = read("a.md", '---\ntitle: "My guide"\n---\n\nHello\n\n# Head\nx\n')
    assert titles(document) == ["My guide", "Head"]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("+++\n# a comment\ntitle = 'It'\n[extra]\n+++\n\nbody\n", "It"),
        ("---\ntitle: >-\n  Long # one\n# a comment\n" + "key: value\n" * 300 + "---\nbody\n", "Long"),
        ('---\ntitle: "C # guide" # why\n...\nbody\n', "C # guide"),
        ("---\n\n# Head\n\n---\n", "Head"),
        ('+++\ntitle = "x"\n# Head\n', "Head"),
    ],
)
def test_front_matter_gives_a_title_and_no_headings(text: str, title: str) -> None:
    assert titles(read("a.md", text))[-1] == title


@pytest.mark.parametrize(
    "block",
    [
        *("<!--\n# x\n\n# y\n-->", "<pre>\n\n# x\n</pre>", "<script>\n\n# x\n</SCRIPT>", "<style>\n# x\n</style>"),
        *("<textarea>\n\n# x\n</textarea>", "<div>\n# x\n</div>\n", "<?php\n\n# x\n?>", "<!X\n# x\n>"),
        *("<![CDATA[\n\n# x\n]]>", "<my-tag a='b'>\n# x\n</my-tag>\n", "<table><tr>\nx\n---\n</table>\n"),
        *("1. x\n\n\t# x\n", "```\nx ```\n# x\n```", "````\n```\n# x\n````", "  ~~~ a`b\n# x\n  ~~~"),
    ],
)
def test_markdown_has_no_headings_in_html_and_code_and_has_those_after_it(block: str) -> None:
    assert titles(read("a.md", f"one\n\n{block}\n# Two\n\ntwo\n\nThree\n---\nthree\n")) == ["", "Two", "Two > Three"]


@pytest.mark.parametrize(
    "before", ["<!-- x -->", "<pre>x</pre>", "text\n<b>", "<https://example.org>", "```x```", "<!--> x", "<br> x"]
)
def test_markup_that_ends_at_once_hides_no_heading(before: str) -> None:
    assert titles(read("a.md", f"{before}\n# Two\n\ntwo\n")) == ["", "Two"]


@pytest.mark.parametrize(
    ("line", "title"),
    [
        *(("## Real <!-- todo -->", "Real"), ("# <!-- a --> A <!-- b --> B ##", "A  B"), ("Real <!-- x\n===", "Real")),
        *(("# The `<!-- x -->` mark", "The `<!-- x -->` mark"), (f"# ![](data:a/b;base64,{'aA0' * 99}) Me", "Me")),
    ],
)
def test_a_heading_of_markdown_is_what_is_seen_of_it(line: str, title: str) -> None:
    assert titles(read("a.md", f"{line}\n\nbody\n"))[0].endswith(lancelot.one_line(title))


@pytest.mark.parametrize("text", ["a\n\n---\n\nb", "- item\n---\n", "#no space", "    # code", "####### seven"])
def test_what_only_looks_like_a_heading_of_markdown_is_none(text: str) -> None:
    assert titles(read("a.md", text)) == [""]


def test_titles_of_restructured_text_have_the_levels_of_their_order() -> None:
    text = "=====\nTitle\n=====\n\nintro\n\nPart\n====\n\nx\n\nSub\n---\n\ny\n\nOther\n=====\nz\n"
    document = read("a.rst", text)
    assert titles(document) == ["Title", "Title > Part", "Title > Part > Sub", "Title > Other"]
    assert document.sections[0].text.startswith("=====\nTitle")


# Source code


PYTHON = '''"""Doc."""
import os

# About f.
@cache
def f():
    def inner():
        pass
    return 1

class A:
    """It."""
    x = 1

    async def m(self):
        return 2

y = 3
'''


def test_python_is_cut_by_its_definitions_with_their_decorators_and_comments() -> None:
    document = read("a.py", PYTHON)
    assert titles(document) == ["", "f", "A", "A > m", ""]
    assert document.sections[1].text.startswith("# About f.\n@cache\ndef f")
    assert document.sections[1].line == 4


def test_python_that_does_not_parse_is_cut_by_its_lines() -> None:
    assert titles(read("a.py", "print 'x'\n\nclass A:\n    def m(self):\n        print 'y'\n")) == ["", "A", "A > m"]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.js", "import x\nexport class A {\n  foo(a) {\n    b();\n  }\n}\nconst g = async (x) => {\n  1\n}\n", ["", "A", "A > foo", "A", "g"]),
        ("a.ts", "export interface I {\n  a: string\n}\nexport function f<T>(a: T): T {\n  return a\n}\n", ["I", "f"]),
        ("a.java", "public class A {\n  int x;\n  public static void main(String[] a) {\n    f(a);\n  }\n}\n", ["A", "A > main", "A"]),
        ("a.c", "#include <a.h>\n\nint g(int);\nstatic int *f(int a,\n  int b)\n{\n  return g(a);\n}\n", ["", "f"]),
        ("a.cpp", "void A::b(int x) {\n  c();\n}\nclass MY_EXPORT D : public E {\n  int f() {\n  }\n};\n", ["A::b", "D", "D > f", "D"]),
        ("a.go", "package p\n\ntype S struct {\n\tA int\n}\n\nfunc (s *S) Run() {\n\tx()\n}\nfunc f() {\n}\n", ["p", "S", "S > Run", "f"]),
        ("a.rs", "use x;\npub struct S {\n    a: u8,\n}\nimpl S {\n    pub fn new() -> S {\n        S\n    }\n}\n", ["", "S", "S > new", "S"]),
        ("a.rb", "module M\n  class A\n    def b?\n      1\n    end\n  end\nend\n", ["M", "M > A", "M > A > b?", "M > A", "M"]),
        ("a.php", "<?php\nclass A {\n    public function b($c) {\n        return 1;\n    }\n}\n", ["", "A", "A > b", "A"]),
        ("a.kt", "class A {\n    fun b(): Int {\n        return 1\n    }\n}\n", ["A", "A > b", "A"]),
        ("a.swift", "struct A {\n    func b() {\n        c()\n    }\n}\n", ["A", "A > b", "A"]),
        ("a.scala", "object A {\n  def b(c: Int) = {\n    c\n  }\n}\n", ["A", "A > b", "A"]),
        ("a.sh", "set -e\nf() {\n  echo\n}\nfunction g {\n  echo\n}\nf\n", ["", "f", "g", ""]),
        ("a.sql", "CREATE TABLE a (\n  b int\n);\nCREATE OR REPLACE VIEW v AS\nSELECT 1;\n", ["a", "v"]),
        ("a.lua", "local function f(a)\n  return a\nend\nfunction M.g()\nend\n", ["f", "M.g"]),
        ("a.r", "f <- function(x) {\n  x\n}\n", ["f"]),
        ("a.pl", "sub f {\n  1;\n}\n", ["f"]),
        ("a.cs", "namespace N {\n    class A {\n        public int B() {\n            return 1;\n        }\n    }\n}\n", ["N", "N > A", "N > A > B", "N > A", "N"]),
    ],
)  # fmt: skip
def test_other_languages_are_cut_by_the_lines_that_begin_a_definition(
    name: str, text: str, expected: list[str]
) -> None:
    document = read(name, text)
    assert titles(document) == expected
    assert "\n".join(section.text for section in document.sections) == text


# HTML


def test_html_is_its_visible_text_below_its_headings() -> None:
    text = """<html><head><title>My &amp; page</title><style>p {}</style></head><body>
<p>Before</p><script>if (a < b) "<p>no</p>"</script>
<h1>One <i>more</i></h1>
<p title="x > y">a &lt; b<!-- not
this --> end<br>next</p><ul><li>x<li>y</ul>
<table><tr><th>A</th><th>B</th></tr><tr><td>1<td>2</table>
<h2>Two</h2><pre>p 1
  p 2</pre></body></html>"""
    document = read("a.html", text)
    found = [(section.title, section.text, section.line) for section in document.sections]
    assert found == [
        ("My & page", "Before", 2),
        ("One more", "One more", 3),
        *[("One more", "a < b end", 4), ("One more", "next", 5), ("One more", "- x", 5), ("One more", "- y", 5)],
        *[("One more", "A | B", 6), ("One more", "1 | 2", 6)],
        *[("One more > Two", "Two", 7), ("One more > Two", "p 1", 7), ("One more > Two", "  p 2", 8)],
    ]


@pytest.mark.parametrize(
    "hidden",
    [
        *(
            "<template><p>no</p><p>no</template>",
            "<noscript><div>no</div></noscript>",
            "<p hidden>no",
            "<p hidden>no</b>",
        ),
        *('<div hidden="hidden"><div>no</div><br>no</div>', '<p style="color: red; DISPLAY : none">no<img alt=no></p>'),
        *(
            "<ul><li hidden>no<ul><li>no<li>no</ul></ul>",
            "<ul><li hidden>no</ul>",
            "<div hidden><h2>no</h2><p>no</div>",
        ),
        *("<table hidden><tr><th>no</table>", "<table><tr hidden><td>no<table><tr><td>no</table><tr><td></table>"),
        *("<dl><dt hidden>no<dd></dl>", "<img hidden alt=no>", "<p hidden>no</p>", "<div hidden/>"),
    ],
)
def test_what_a_page_does_not_show_is_not_read(hidden: str) -> None:
    sections = read("a.html", f"<body hidden><h1>Head</h1><p>one</p>{hidden}<p>two</p>").sections
    assert [(section.text, section.title) for section in sections] == [
        ("Head", "Head"),
        ("one", "Head"),
        ("two", "Head"),
    ]


def test_a_row_is_one_line_and_paragraphs_in_its_cells_are_lines_of_it() -> None:
    table = "<table><tr><td><p>a</p></td><td><p>b</p><td><p>c<br>d</p><p>e</p></td><td>f</table>"
    assert [section.text for section in read("a.html", table).sections] == ["a | b | c", "d", "e | f"]


def test_what_a_search_in_the_page_would_show_is_read() -> None:
    assert read("a.html", "<div hidden=until-found>yes</div>").sections[0].text == "yes"


@given(
    st.lists(
        st.sampled_from(
            "<table> </table> <thead> </thead> <tbody> <tr> </tr> <th> <td> <p> <div> </div> <p@> <tr@> <td@> <div@> a".split()  # noqa: SIM905 - words are read best as words
        )
    ).map(lambda parts: "".join(parts).replace("@", " hidden"))
)
def test_tags_in_any_order_are_read(text: str) -> None:
    with contextlib.suppress(IgnoredError):
        read("a.html", text)


@pytest.mark.parametrize(
    ("table", "header"),
    [
        ("<table><tr><th>Name<th>Age<tr><td>a<td>1</table>", "Name | Age"),
        ("<table><thead><tr><td>Name</td><td>Age</td></tr></thead><tr><td>a</table>", "Name | Age"),
        ("<table><caption>C</caption><tr><th><p>Name</p><th><p>Age</p></tr><tr><td>a</table>", "Name | Age"),
        ("<table><tr><th>Name<td>Bob<tr><th>Age<td>1</table>", ""),
        ("<table><tr><td>a<td>b<tr><td>a</table>", ""),
        ("<table><tr><th>Name<tr><td><table><tr><td>x</table><tr><td>a</table>", "Name"),
    ],
)
def test_rows_of_a_page_know_the_header_of_their_table(table: str, header: str) -> None:
    sections = read("a.html", f"<p>before</p>{table}<p>after</p>").sections
    assert [sections[at].header for at in (0, -2, -1)] == ["", header, ""]


# Pictures in text


PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAUA" * 200


def wrapped(gap: str) -> str:
    return gap.join(PICTURE[at : at + 76] for at in range(0, len(PICTURE), 76))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", f"one ![x](data:image/png;base64,{PICTURE}) two"),
        ("a.md", f"one ![x][1] two\n\n[1]: data:image/png;base64,{PICTURE} 'title'\n"),
        ("a.md", f'one <img src="data:image/gif;base64,{PICTURE[:40]}"> two'),
        ("a.html", f'one <img src="data:image/png;base64,{PICTURE}"> two'),
        ("a.svg", "one <image href='data:image/png;base64," + wrapped("\n") + "'/> two"),
        ("a.svg", "one <image href='data:image/png;base64,\n" + wrapped("&#10;") + "'/> two"),
        ("a.json", json.dumps({"a": "one", "b": PICTURE, "c": {"d": f"data:image/png;base64,{PICTURE}"}, "e": "two"})),
        ("a.json", json.dumps({"a": "one", "b": PICTURE}).replace("AA", r"\/9").replace("}", ', "c": "two"}')),
        ("a.jsonl", json.dumps(["one", wrapped("\n"), "two"])),
        ("a.eml", "one\n\n" + wrapped("\n") + "==\n\ntwo"),
        ("a.csv", f"a,b\none,{PICTURE}\ntwo,x\n"),
        ("a.css", f"/* one */ a {{ background: url(data:image/png;base64,{PICTURE}) }} /* two */"),
        (
            "a.ipynb",
            json.dumps(
                {
                    "cells": [
                        {
                            "cell_type": "markdown",
                            "source": f"one ![x](data:image/png;base64,{PICTURE}) ![y](attachment:y.png)",
                            "attachments": {"y.png": {"image/png": PICTURE}},
                        },
                        {
                            "cell_type": "code",
                            "source": f"'two'; x = '{PICTURE}'",
                            "outputs": [{"data": {"image/png": PICTURE}}, {"text": [PICTURE]}],
                        },
                    ]
                }
            ),
        ),
    ],
)
def test_pictures_written_in_a_text_are_not_read(name: str, text: str) -> None:
    document = read(name, text)
    held = "\n".join(section.text for section in document.sections)
    assert "one" in held
    assert "two" in held
    assert "SUhE" not in held
    assert len(held) < 250
    if name.endswith((".md", ".svg", ".eml")):
        assert held.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "kept", ["ACGT" * 100, "0123456789abcdef" * 100, "usr/lib/python/" * 30, "sha512-" + PICTURE[:88] + "==", "x" * 999]
)
def test_long_words_that_are_no_pictures_are_read(kept: str) -> None:
    assert read("a.json", json.dumps({"a": kept})).sections[0].text == f"a: {kept}"


# Tables and records


def test_rows_of_a_table_name_their_columns() -> None:
    document = read("a.csv", 'name;age\n"Smith; A";3\n\nBob;\n')
    assert document.sections == (
        Section("name: Smith; A\nage: 3", place="row 2"),
        Section("name: Bob", place="row 4"),
    )


@pytest.mark.parametrize(
    ("first", "separator"), [("sep=;", ";"), ('"SEP=|"', "|"), ("sep=\t", "\t"), ("sep=;;;", ";"), ("sep=,", ",")]
)
def test_a_first_line_that_names_the_separator_is_no_row(first: str, separator: str) -> None:
    row = f"1.5{separator}2;3,4|5 6"
    document = read("a.csv", f"{first}\nname{separator}age\n{row}\n".replace("2;3,4|5", "2"))
    assert document.sections == (Section("name: 1.5\nage: 2 6", place="row 2"),)


def test_a_table_without_a_header_is_joined() -> None:
    assert read("a.tsv", "1\t2\n3\t4\n").sections == (Section("1 | 2", place="row 1"), Section("3 | 4", place="row 2"))


def test_a_table_with_an_open_quote_longer_than_a_field_is_read_as_text() -> None:
    assert read("a.csv", 'a,b\n1,2\n3,"' + "x,y\n" * 50_000).extractor == "text"


def test_records_and_keys_of_json_are_sections() -> None:
    records = read("a.json", '[{"a": 1, "b": {"c": ["x", "y"]}}, 2, null]')
    assert records.sections == (Section("a: 1\nb.c[0]: x\nb.c[1]: y", place="record 1"), Section("2", place="record 2"))
    assert read("a.json", '{"k": {"a": true}, "n": 1.5}').sections == (
        Section("k.a: true", "k"),
        Section("n: 1.5", "n"),
    )


def test_broken_json_is_read_as_text() -> None:
    assert read("a.json", '{"a": ').extractor == "text"
    assert read("a.ipynb", '{"a": ').extractor == "text"
    assert read("a.jsonl", "{\n{").extractor == "text"


def test_json_lines_have_their_line_as_place_and_keep_a_broken_one() -> None:
    document = read("a.jsonl", '{"a": 1}\n\n{broken\n')
    assert document.sections == (Section("a: 1", place="line 1"), Section("{broken", place="line 3"))


def test_a_notebook_is_read_cell_by_cell() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Head\n", "words"]},
        {"cell_type": "code", "source": "print(1)", "outputs": [{"output_type": "stream", "text": ["1\n"]}]},
        {"cell_type": "code", "source": "2", "outputs": [{"data": {"text/plain": "two", "image/png": "iVBO"}}]},
    ]
    document = read("a.ipynb", json.dumps({"cells": cells}))
    assert document.sections == (
        Section("# Head\nwords", "Head", place="cell 1"),
        Section("print(1)\n1\n", "Head", place="cell 2"),
        Section("2\ntwo", "Head", place="cell 3"),
    )


# PDF


def test_a_pdf_is_read_page_by_page_whatever_its_name() -> None:
    content = make_pdf("Hello world", "", "Third page", title="My paper")
    for name in ("a.pdf", "a.txt"):
        document = read(name, content)
        assert document.extractor == "pdf"
        assert [(section.text, section.title, section.place) for section in document.sections] == [
            ("Hello world", "My paper", "page 1"),
            ("Third page", "My paper", "page 3"),
        ]


def test_a_pdf_with_an_empty_password_is_opened_and_one_with_another_is_refused() -> None:
    empty, secret = (Path(__file__).parent / "support" / f"password-{name}.pdf" for name in ("empty", "secret"))
    assert read("a.pdf", empty.read_bytes()).sections[0].text == "Hello"
    assert refusal("a.pdf", secret.read_bytes()) == "is protected by a password"


def test_a_pdf_without_text_or_in_pieces_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "scanned" in refusal("a.pdf", make_pdf("", ""))
    assert "damaged" in refusal("a.pdf", b"%PDF-1.4\n" + bytes(range(256)) * 10)
    monkeypatch.setattr(lancelot_reading, "MAX_PAGES", 1)
    assert "more than 1 pages" in refusal("a.pdf", make_pdf("a", "b"))


def test_a_pdf_of_ten_thousand_pages_is_read() -> None:
    content = make_pdf(") Tj 0 -200 Td (a").replace(b"[4 0 R] /Count 1", b"[" + b"4 0 R " * 10_000 + b"] /Count 10000")
    assert read("a.pdf", content).sections[-1].place == "page 10000"


def test_pages_that_are_damaged_or_pictures_are_named_and_the_others_are_kept() -> None:
    document = read("a.pdf", make_pdf("one", "two", SCAN, "", "five").replace(b" 6 0 R", b" 1 0 R"))
    assert [section.place for section in document.sections] == ["page 1", "page 5"]
    unread, scanned = "1 page that cannot be read: 2", "1 page without text, which may be scanned: 3"
    assert document.missing == f"is read but for {unread}; {scanned}"
    assert "scanned" in refusal("a.pdf", make_pdf(SCAN))


def test_running_heads_and_page_numbers_are_left_out_but_for_the_first_head() -> None:
    pages = [
        shown(
            (9, 72, 760, "Yearly report"),
            (20, 72, 740, f"Long title of week {at}"),
            (12, 72, 500, "same"),
            (9, 300, 40, f"Page {at} of 4"),
        )
        for at in range(1, 5)
    ]
    document = read("a.pdf", make_pdf(*pages))
    assert [section.text for section in document.sections] == [
        "Yearly report",
        *(f"Long title of week {at}\nsame" for at in range(1, 5)),
    ]
    assert "no text" in refusal("a.pdf", make_pdf(*(shown((9, 300, 40, f"- {at} -")) for at in range(1, 5))))


def test_headings_of_a_pdf_are_those_of_its_outline_or_else_of_large_type() -> None:
    first = shown((12, 72, 700, "above"), (12, 72, 600, "1 Over"), (12, 72, 580, "view"), (12, 72, 500, "text"))
    outlined = read("a.pdf", make_pdf(first, "more", outline=("Overview", "Elsewhere"), title="Guide"))
    assert [(section.title, section.place, section.text) for section in outlined.sections] == [
        ("Guide", "page 1", "above"),
        ("Overview", "page 1", "1 Over\nview\ntext"),
        ("Overview > Elsewhere", "page 2", "more"),
    ]
    without = make_pdf("one", "two", outline=("Part", "Chapter")).replace(b"/Dest [4 0 R /Fit]", b"")
    assert titles(read("a.pdf", without)) == ["", "Part > Chapter"]
    body = "a line of text that is as small as most"
    parts = [(24, "Guide to"), (24, "engines"), (18, "Boilers"), (12, body), (18, "Shafts"), (12, body), (12, "1 + 1")]
    large = read("a.pdf", make_pdf(shown(*((size, 72, 700 - 30 * at, text) for at, (size, text) in enumerate(parts)))))
    assert titles(large) == ["Guide to engines > Boilers", "Guide to engines > Shafts"]


def test_a_pdf_without_a_title_has_that_of_its_largest_type_and_of_a_broken_outline_what_can_be_read() -> None:
    small, text = (
        [(12, 72, 600 - 12 * at, f"line {at} of the text") for at in range(3)],
        (12, 72, 540, "another paragraph"),
    )
    page = shown((24, 72, 700, "Harbour works"), *small, (12, 72, 564, "as 1 ....... 2"), text)
    document = read("a.pdf", make_pdf(page, "more", title="Microsoft Word - a.doc", outline=("\\376\\377\\330\\000",)))
    assert [section.title for section in document.sections] == ["Harbour works"] * 2
    assert document.sections[0].text.endswith("\nline 2 of the text\nas 1 … 2\n\nanother paragraph")


LEFT = ["The boiler of the first ship had", "two plates, which the inspec-", "tion of that year found to be thin"] * 3
RIGHT = ["and the second ship had none at", "all, since its owners would not", "pay for one until the war began"] * 3


@pytest.mark.parametrize("by_line", [True, False])
def test_columns_of_a_page_are_read_one_after_the_other_however_they_are_written(by_line: bool) -> None:  # noqa: FBT001
    left, right = (
        [(10, x, 600 - 12 * at, text) for at, text in enumerate(texts)] for x, texts in ((72, LEFT), (310, RIGHT))
    )
    columns = [line for row in zip(left, right, strict=True) for line in row] if by_line else [*left, *right]
    head = "Both columns are below this line, which is as wide as they are together"
    (section,) = read("a.pdf", make_pdf(shown((10, 72, 700, head), *columns))).sections
    assert section.text.split() == " ".join([head, *LEFT, *RIGHT]).replace("inspec- tion", "inspection").split()


def test_a_table_of_a_pdf_is_read_row_by_row() -> None:
    cells = [
        (10, x, 600 - 12 * at, f"{name} {at}")
        for at in range(9)
        for x, name in ((72, "A part with a very long name"), (310, "kg"))
    ]
    assert (
        read("a.pdf", make_pdf(shown(*cells)))
        .sections[0]
        .text.startswith("A part with a very long name 0 kg 0\nA part")
    )


@given(st.integers(0, 900), st.binary(min_size=1, max_size=20))
def test_a_pdf_that_is_overwritten_anywhere_is_read_or_refused(at: int, junk: bytes) -> None:
    content = make_pdf("Hello world", "more")
    with contextlib.suppress(UnreadableError):
        read("a.pdf", content[:at] + junk + content[at + len(junk) :])


def make_form(*fields: str) -> bytes:
    """A PDF of one page that shows nothing but these fields of a form."""
    kids = " ".join(f"{4 + number} 0 R" for number in range(len(fields)))
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [{kids}] >> >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Annots [{kids}] >>",
        *(f"<< /Type /Annot /Subtype /Widget /Rect [0 0 9 9] {field} >>" for field in fields),
    ]
    return pdf_of(objects, "/Root 1 0 R")


def test_what_is_filled_into_the_form_of_a_pdf_is_read_with_its_name_but_for_passwords() -> None:
    fields = [
        "/FT /Tx /T (surname) /V (Miller)",
        "/FT /Tx /T (f2) /TU (Given name) /V (Ann)",
        *("/FT /Btn /T (agreed) /V /Yes /AS /Yes", "/FT /Btn /T (member) /V /Off /AS /Off", "/FT /Tx /T (blank)"),
        "/FT /Ch /T (cities) /V [(t) (o)] /Opt [[(t) (Turku)] [(r) (Rome)] [(o) (Oslo)]]",
        *("/FT /Tx /Ff 8192 /T (password) /V (secret)", "/FT /Sig /T (signature) /V << /Type /Sig >>"),
    ]
    (section,) = read("a.pdf", make_form(*fields)).sections
    assert section.text.split("\n") == ["surname: Miller", "Given name: Ann", "agreed: Yes", "cities: Turku, Oslo"]
    assert section.place == "page 1"
    note = make_form("").replace(b"/Subtype /Widget", b"/Subtype /FreeText /Contents (typed onto it)")
    assert read("a.pdf", note).sections[0].text == "typed onto it"


def test_a_damaged_field_of_a_form_costs_neither_the_page_nor_the_fields_before_it() -> None:
    content = make_form("/FT /Tx /T (surname) /V (Miller)", "/FT /Tx /T (x) /Ff (no number) /V (1)")
    assert "surname: Miller" in read("a.pdf", content).sections[0].text


# Words that are divided


DIVIDED = {
    "an inspec-\ntion, of": "an\ninspection, of",
    "(semicon-\nductor) x": "\n(semiconductor) x",
    "a well-\nknown man": "a\nwell-known man",
    "state-of-\nthe-art": "\nstate-of-the-art",
    "we co-\noperate; to co-operate": "we\nco-operate; to co-operate",
    "to pre-\nheat; self-\nish selfish": "to\npreheat;\nselfish selfish",
    "an INSPEC-\nTION": "an\nINSPECTION",
    "Frau Meier-\nSchulze": "Frau\nMeier-Schulze",
    "a\u00ad\nbc photo\u00adsyn\u00ad\nthesis deutsch¬\nland": "\nabc\nphotosynthesis\ndeutschland",
}


@pytest.mark.parametrize("text", DIVIDED)
def test_words_that_line_ends_divide_are_whole_in_prose_and_lines_keep_their_numbers(text: str) -> None:
    assert read("a.txt", text).sections == (Section(DIVIDED[text], line=1),)
    assert DIVIDED[text].count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "text",
    ["Vor-\nund Nachteile", "12-\n13", "x-\ny", "- item\n- other-\n- item", "a@foo-\nbar.com", "b-\nbc_d", "ab -\ncd"],
)
def test_what_is_no_divided_word_is_left_as_it_is(text: str) -> None:
    assert read("a.txt", text).sections[0].text == text


@pytest.mark.parametrize("name", ["a.py", "a.md", "a.csv", "a.yaml"])
def test_code_lists_and_tables_are_not_taken_for_divided_words(name: str) -> None:
    assert "width-\nheight" in read(name, "width-\nheight\n").sections[0].text


def test_words_that_lines_of_a_pdf_divide_are_whole() -> None:
    text = read("a.pdf", make_pdf("the environ-) Tj 0 -14 Td (mental aspects")).sections[0].text
    assert text == "the\nenvironmental aspects"
    pages = read(
        "a.pdf", make_pdf("a well-) Tj 0 -14 Td (known \\256nal inspec-", "tion and well-known facts")
    ).sections
    assert [page.text for page in pages] == ["a\nwell-known final", "inspection and well-known facts"]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (
            r"photo\255synthesis of well-known chloro\255) Tj 0 -14 Td (plasts",
            "photosynthesis of well-known\nchloroplasts",
        ),
        (r") Tj [(photo) -20.5 (\255syn) 8 (thesis)] TJ (", "photosynthesis"),
        (r"a well\255known fact of 1999\2552001", "a well-known fact of 1999-2001"),
        (r"pre\255 and post\255war", "pre- and post-war"),
    ],
)
def test_hyphens_of_a_pdf_within_a_line_are_soft_if_it_has_their_code_nowhere_else(written: str, text: str) -> None:
    content = make_pdf(written).replace(b"/Helvetica", b"/Helvetica /Encoding /WinAnsiEncoding")
    assert [section.text for section in read("a.pdf", content).sections] == [text]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("a.txt", "auto\u00admo\u200bbi\u2060le"), ("a.md", "# auto\ufeffmobile"), ("a.html", "<p>auto&shy;mo&#8203;bile")),
        *(("a.py", "# auto\u00admobile"), ("a.json", '["auto\\u00admobile"]'), ("a.csv", "auto\u00admobile,x\n")),
    ],
)  # fmt: skip
def test_invisible_characters_do_not_divide_words(name: str, content: str) -> None:
    (section, *_) = read(name, content).sections
    assert "automobile" in section.text
    assert not set(lancelot.INVISIBLE) & set(section.text + section.title)


def test_joiners_that_letters_and_emoji_need_stay() -> None:
    text = "\u0645\u06cc\u200c\u062e क्\u200dष 👩\u200d💻"
    assert read("a.txt", text).sections[0].text == text


@pytest.mark.parametrize("name", ["a.log", "a.txt", "a.jsonl"])
def test_colours_and_other_codes_of_a_terminal_are_left_out(name: str) -> None:
    line = "\x1b[1;31mERROR\x1b[0m \x1b]8;;http://x\x1b\\disk\x1b]8;;\x07 \x1b(Bfull\x1b[K"
    content = json.dumps(line) if name == "a.jsonl" else line
    assert read(name, content).sections[0].text == "ERROR disk full"


# Encodings


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Der Käufer trägt die Kosten. Größe und Maß müssen stimmen, “so”.", "cp1252"),
        ("L'été dernier, nous étions à la plage où il faisait très chaud.", "cp1252"),
        ("Wszyscy ludzie rodzą się wolni i równi w swej godności i żółte łódki.", "cp1250"),
        ("Это документ на русском языке. Смотрите чертёж и описание.", "koi8_r"),
        ("Это документ на русском языке. Смотрите чертёж и описание.", "cp1251"),
        ("これは日本語の文書です。設計図を見てください。", "cp932"),
        ("これは日本語の文書です。設計図を見てください。", "euc_jp"),
        ("这是一个中文文件。请查看设计图和说明书。", "gb18030"),
        ("這是一個中文文件。請查看設計圖和說明書。", "big5"),
        *[("Hello wörld, žluťoučký 漢字 Привет 😀\n", name) for name in ("utf-8", "utf-8-sig", "utf-16", "utf-32")],
        *[("Hello wörld, this is text.\n", name) for name in ("utf-16-le", "utf-16-be")],
        ("\ufeffHello Привет", "utf-16-be"),
        ("\ufeffHello Привет", "utf-32-be"),
    ],
)
@pytest.mark.parametrize("before", ["", "plain ASCII text\n" * 5000])
def test_text_is_decoded_from_the_encoding_it_is_in(text: str, encoding: str, before: str) -> None:
    whole = before + text if not text.startswith("\ufeff") else text + before
    assert lancelot_reading.decode_text(whole.encode(encoding))[0] == whole.lstrip("\ufeff")


SHORT = [
    *[(text, "cp1252") for text in ("Sähkölasku", "£45", "café", "naïve", "Größe: 3 m²", "Prix : 12 €", "smörgåsbord")],
    *[(text, "cp1252") for text in ("5 °C", "Crème brûlée", "½ cup", "© 2024 Smith", "déjà vu", "“so” it is")],
    *[(text, "cp1250") for text in ("Zażółć gęślą jaźń", "Příliš žluťoučký kůň", "Ő és Ű")],
    *[("Привет, мир", "cp1251"), ("Привет", "koi8_r"), ("Договор аренды квартиры", "cp866")],
    *[("日本語のテキスト", "cp932"), ("東京", "cp932"), ("これはメモです。設計図", "euc_jp"), ("中文测试", "gb18030")],
    *[("中文測試內容", "big5"), ("한국어 텍스트", "cp949"), ("안녕하세요", "cp949"), ("Καλημέρα κόσμε", "cp1253")],
]


@pytest.mark.parametrize(("text", "encoding"), SHORT)
def test_a_short_text_is_read_in_its_code_page_and_western_before_east_asian(text: str, encoding: str) -> None:
    assert len(SHORT) == 27
    assert lancelot_reading.decode_text(text.encode(encoding))[0] == text


def test_a_guess_that_is_unsure_is_told_and_a_declared_encoding_is_not() -> None:
    assert (
        "is read as cp1252, which is a guess" in lancelot_reading.read_document("a.txt", "£45".encode("cp1252")).missing
    )
    sure = "Wszyscy ludzie rodzą się wolni i równi w swej godności i żółte łódki."
    assert lancelot_reading.read_document("a.txt", sure.encode("cp1250")).missing == ""
    assert lancelot_reading.read_document("a.html", '<meta charset="cp1252">£45'.encode("cp1252")).missing == ""


@pytest.mark.parametrize(
    ("page", "encoding"),
    [
        ('<html><head><meta charset="windows-1250"><body>Gdańsk', "cp1250"),
        ("<META http-equiv=Content-Type content='text/html; charset=iso-8859-2'>Žižkov", "iso8859_2"),
        ('<?xml version="1.0" encoding="ISO-8859-1"?><p>“é”</p>', "cp1252"),
        ("<meta charset=Shift_JIS>東京①", "cp932"),
        ("<meta charset=gb2312>中文", "gb18030"),
        ("<meta charset=iso-2022-jp>東京", "iso2022_jp"),
        ("#!/usr/bin/python\n# -*- coding: koi8-r -*-\n'Счёт'", "koi8_r"),
        ("<meta charset=iso-8859-1>Ünïcode", "utf-8"),
        ("<meta charset=base64>café", "cp1252"),
        ("<meta charset=unicode_escape>café", "cp1252"),
    ],
)
def test_the_encoding_that_a_page_declares_is_obeyed_where_it_can_be(page: str, encoding: str) -> None:
    assert lancelot_reading.decode_text(page.encode(encoding))[0] == page


def test_utf_8_with_a_broken_place_stays_utf_8() -> None:
    assert lancelot_reading.decode_text("Größe und Maß sind über viel größer für müde Füße".encode() + b"\xc3")[0] == (
        "Größe und Maß sind über viel größer für müde Füße\ufffd"
    )


def test_a_few_zeros_become_spaces_and_many_are_binary() -> None:
    assert read("a.txt", b"some words\0and others that go on for a while\r\nx").sections[0].text.split("\n") == [
        "some words and others that go on for a while",
        "x",
    ]
    assert refusal("a.txt", b"ab\0\0\0\0cd" * 10) == "holds binary data"
    with pytest.raises(IgnoredError, match="binary"):
        read("a.unknown", bytes(range(256)) * 10)


@pytest.mark.parametrize(
    "suffix",
    ["txt", "md", "rst", "py", "js", "html", "csv", "json", "jsonl", "ipynb", "pdf", "docx", "xlsx", "epub", "odt"],
)
@pytest.mark.parametrize("content", [b"", b" \n\t\n", "\ufeff".encode(), b"\xff\xfe"])
def test_what_holds_nothing_is_empty(suffix: str, content: bytes) -> None:
    with pytest.raises(IgnoredError, match="empty"):
        read(f"a.{suffix}", content)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("app.min.js", "var a = 1;", "minified"),
        ("bundle.js", "var a=1;" * 1000, "minified"),
        ("style.css", ".a{color:red}" * 1000, "minified"),
        ("app.js.map", '{"version":3,"mappings":"AAAA"}', "source map"),
        ("package-lock.json", '{"lockfileVersion": 3}', "lock file"),
        ("Cargo.lock", "[[package]]", "lock file"),
        ("pnpm-lock.yaml", "packages:", "lock file"),
        ("go.sum", "golang.org/x/text v0.3.0 h1:g61tztE5=", "lock file"),
    ],
)
def test_what_programs_write_for_programs_is_left_out(name: str, text: str, kind: str) -> None:
    with pytest.raises(IgnoredError) as error:
        read(name, text)
    assert error.value.cause == kind


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("road.map", "The map shows the road."),
        ("lock.md", "How the lock works."),
        ("small.js", "f();" * 100),
        ("app.js", "// a line of a script\n" * 1000),
        ("data.json", '{"a": "' + "word " * 2000 + '"}'),
        ("admin.js", "start();"),
    ],
)
def test_what_only_looks_like_that_is_read(name: str, text: str) -> None:
    assert read(name, text).sections


# Anything


def test_text_under_a_wrong_name_is_text() -> None:
    for name in ("a.pdf", "a.docx", "a", "a.unknown", "Makefile"):
        assert read(name, "just words").sections == (Section("just words", line=1),)


SUFFIXES = sorted({*lancelot_reading.TEXT_READERS, *lancelot_reading.DOCUMENT_SUFFIXES, ""})
FRAGMENTS = st.sampled_from(
    [*("<", ">", "</", "<!--", "-->", "<p>", "<h1>", '"', "'", "{", "}", "[", "]", ":", ",", "#", "=", "---\n", "```\n", "\n"), *(" ", "\t", "def f():\n", "class A:\n", "a", "1", "\\ud800", "é", "\r\n", "\x00", "|", ";", "*/", '{"cells":[', "%PDF-"), *("{\\rtf1 ", "\\par ", "\\u-1 ", "\\'e9", "00:01.0 --> \n", "\\section{", "key:\n", "[a]\n", "From a 10:20\n", "Date: a\n")]
)  # fmt: skip


@given(st.sampled_from(SUFFIXES), st.one_of(st.binary(max_size=300), st.lists(FRAGMENTS).map("".join).map(str.encode)))
@example(".json", b'["\\ud800"]')
@example(".pdf", b"%PDF-")
@example(".docx", b"PK\x03\x04")
@example(".xls", bytes.fromhex("d0cf11e0a1b11ae1"))
def test_any_bytes_under_any_name_give_chunks_or_a_reason(suffix: str, content: bytes) -> None:
    with contextlib.suppress(UnreadableError):
        for chunk in lancelot_reading.cut_document(read(f"a{suffix}", content), name=f"a{suffix}"):
            assert chunk.text.strip()
            chunk.text.encode()


CODE = st.lists(st.sampled_from(["def f():", "class A {", "}", "  int g(int a) {", "x = 1", "", "// c", "  end"])).map(
    "\n".join
)


@given(st.sampled_from([".py", ".js", ".c", ".rb", ".sql", ".sh", ".md", ".rst"]), CODE)
def test_every_line_of_code_and_markup_is_in_one_section(suffix: str, text: str) -> None:
    if text.strip():
        sections = read(f"a{suffix}", text).sections
        lines = text.split("\n")
        for section in sections:
            held = section.text.split("\n")
            assert lines[section.line - 1 : section.line - 1 + len(held)] == held
        assert [line for section in sections for line in section.text.split("\n") if line] == list(filter(None, lines))


HOSTILE = {
    "closed.html": b"<a x='" * 200_000 + b">",
    "tags.html": b'<a x="' + b"y" * 10 + b'">' + b"</A>" * 200_000,
    "cells.html": b"<tr>" + b"<td>a" * 200_000,
    "nested.html": b"<div>" * 300_000 + b"x",
    "scripts.html": b"<script>" * 200_000 + b"x",
    "rule.rst": b"=" * 2_000_000 + b" x",
    "hidden.html": b"<div hidden>" + b"<i>" * 60_000 + b"</b>" * 60_000,
    "tables.html": b"<table><tr><th>a" * 60_000,
    "hashes.md": b"# " + b"# " * 1_000_000,
    "comments.md": b"# " + b"<!--" * 500_000,
    "title.md": b"---\ntitle: a" + b" " * 2_000_000 + b"b\n---\n",
    "rules.md": b"a|\n|-\n" * 200_000,
    "fence.md": b"`" * 1_000_000 + b"\n# a\n" * 100_000,
    "picture.md": (b"aA1" * 39 + b" " * 39) * 20_000,
    "pictures.md": b";base64," * 300_000,
    "parentheses.py": b"(" * 300_000,
    "types.java": (b"a " * 140 + b"\n") * 5000,
    "quotes.csv": b'"' * 1_000_000,
    "spaces.txt": b"a" + b" " * 2_000_000 + b"b",
    "word.txt": b"x" * 1_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_read_in_seconds(name: str) -> None:
    def run() -> None:
        with contextlib.suppress(UnreadableError):
            list(lancelot_reading.cut_document(read(name, HOSTILE[name]), name=name))

    lancelot.bounded(run, seconds=30, name=name)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, "[" * 2000 + "1" + "]" * 2000])
def test_json_that_nests_too_deep_is_refused(content: str) -> None:
    assert refusal("a.json", content) == "nests too deeply"


def test_the_limits_of_a_document_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lancelot_reading, "MAX_SECTIONS", 2)
    assert "or 2 rows" in refusal("a.csv", "a,b\n" * 9)
    monkeypatch.setattr(lancelot_reading, "MAX_CHARACTERS", 10)
    assert "more than 10 characters" in refusal("a.txt", "x" * 11)


def test_the_same_bytes_give_the_same_chunks() -> None:
    content = zlib.compress(b"seed").hex() * 400 + PYTHON * 20
    first, second = (list(lancelot_reading.cut_document(read("a.py", content), name="a.py")) for _ in range(2))
    assert first == second
    assert sys.getrecursionlimit() >= 1000


def test_stray_zeros_do_not_make_a_text_utf_16() -> None:
    assert refusal("a.csv", b"row,\0 abc\n" * 200) == "holds binary data"
    assert "1,  002" in "".join(section.text for section in read("a.txt", b"a,b\n1, \0" + b"002\n" * 99).sections)


def test_a_heading_without_a_body_stays_with_the_next_one() -> None:
    sections = read("a.md", "# A\n\n## B\n\nbody\n\n## C\n\n## D\nend\n").sections
    assert [(section.title, section.text.split("\n")[0], section.line) for section in sections] == [
        ("A > B", "# A", 1),
        ("A > D", "## C", 7),
    ]
    sections = read("a.rst", "AA\n==\n\nBB\n--\n\nbody\n").sections
    assert [(section.title, section.line) for section in sections] == [("AA > BB", 1)]


@pytest.mark.parametrize(
    "odd", ["<![ endif]>", "<![foo bar]>", "<![if !supportLists]>", "<![endif]>", "<![", "<![CDATA[x]]>"]
)
def test_an_odd_declaration_costs_no_text(odd: str) -> None:
    sections = read("a.html", f"<p>first</p>\n{odd}\n<p>second" + ("</p>" if odd.endswith(">") else "")).sections
    assert [section.text for section in sections][:1] == ["first"]
    if odd.endswith(">"):
        assert [(section.text, section.line) for section in sections][-1] == ("second", 3)
