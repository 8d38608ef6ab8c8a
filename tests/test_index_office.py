"""Office documents and books: what real programs and libraries made, and what is broken or hostile."""

import contextlib
import datetime as dt
import io
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from hypothesis import given
from hypothesis import strategies as st
from office import (
    MARKUP,
    POINT,
    WORD,
    make_docx,
    make_epub,
    make_odt,
    make_pptx,
    make_xlsb,
    make_xlsx,
    make_zip,
    paragraph,
    relations,
)
from test_index_reading import read, refusal

import lancelot
import lancelot_reading
from lancelot_reading import IgnoredError, UnreadableError

OFFICE_FILES = Path(__file__).parent / "office"
"""Files that only their programs write, made by LibreOffice."""


def saved(document: Any) -> bytes:
    document.save(buffer := io.BytesIO())
    return buffer.getvalue()


def found(name: str, content: bytes) -> list[tuple[str, str, str]]:
    return [(section.title, section.place, section.text) for section in read(name, content).sections]


# Spreadsheets


def make_workbook(**sheets: list[list[object]]) -> Any:
    from openpyxl import Workbook

    book = Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    return book


STOCK = [
    ["Item", "Bought", "Price", "Left"],
    ["sprocket", dt.date(2024, 3, 1), 1.25, 40],
    ["ratchet", dt.datetime(2024, 3, 2, 14, 30), 0.1 + 0.2, True],  # noqa: DTZ001 - workbooks know no time zone
]
STAFF = [["Name", "Town"], ["Aino", "Turku"], [None, "Vaasa"]]


def test_a_workbook_is_read_sheet_by_sheet_each_row_with_its_columns_and_dates_as_dates() -> None:
    book = make_workbook(Stock=STOCK, Staff=STAFF, Empty=[], Hidden=[["secret", "x"]])
    book["Staff"].merge_cells("A2:A4")
    book["Staff"].merge_cells("F1:F9")
    book["Hidden"].sheet_state = "hidden"
    for name in ("a.xlsx", "a.docx", "a.unknown"):
        assert found(name, saved(book)) == [
            ("Stock", "row 2", "Item: sprocket\nBought: 2024-03-01\nPrice: 1.25\nLeft: 40"),
            ("Stock", "row 3", "Item: ratchet\nBought: 2024-03-02 14:30:00\nPrice: 0.3\nLeft: True"),
            ("Staff", "row 2", "Name: Aino\nTown: Turku"),
            ("Staff", "row 3", "Name: Aino\nTown: Vaasa"),
        ]


def test_workbooks_of_older_and_binary_formats_are_read_with_the_values_of_formulas() -> None:
    old = found("a.xls", (OFFICE_FILES / "stock.xls").read_bytes())
    assert old[:2] == [
        ("Stock", "row 2", "Item: sprocket\nBought: 2024-03-01\nPrice: 1.25\nTotal: 2.5"),
        ("Stock", "row 3", "Item: ratchet\nBought: 2024-03-02 14:30:00\nPrice: 0.1\nTotal: 0.2"),
    ]
    assert found("a.xlsb", make_xlsb(("Name", "Town"), ("Aino", "Turku"))) == [
        ("Plan", "row 2", "Name: Aino\nTown: Turku")
    ]


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        ([["Sales"], [], ["Town", 2023, 2024], ["Oslo", 5, 6]], ["Sales", "Town: Oslo\n2023: 5\n2024: 6"]),
        ([[None, "Town", "Area"], [0, "Oslo", 7]], ["0\nTown: Oslo\nArea: 7"]),
        ([["Town", "Street"]], ["Town | Street"]),
        ([["Oslo", "Oslo"], ["Bergen", "x"]], ["Oslo | Oslo", "Bergen | x"]),
        ([["Oslo", 5], ["Bergen", 6]], ["Oslo | 5", "Bergen | 6"]),
    ],
    ids=["title above", "no name above an index", "header alone", "names twice", "numbers"],
)
def test_the_header_of_a_sheet_is_its_first_full_row_of_names(rows: list[list[object]], texts: list[str]) -> None:
    assert [text for _, _, text in found("a.xlsx", saved(make_workbook(Towns=rows)))] == texts


def test_a_lone_sheet_that_was_never_named_gives_no_title() -> None:
    for name, title in [("Sheet1", ""), ("Tabelle1", ""), ("シート1", ""), ("Stock", "Stock"), ("2024", "2024")]:
        assert {title for title, *_ in found("a.xlsx", saved(make_workbook(**{name: STAFF})))} == {title}
    assert {title for title, *_ in found("a.xlsx", saved(make_workbook(Sheet1=STAFF, Sheet2=STAFF)))} == {
        "Sheet1",
        "Sheet2",
    }


def test_a_page_or_a_table_of_text_under_the_name_of_a_workbook_is_read_as_what_it_is() -> None:
    page = "<html><table><tr><th>Name<th>Town</tr><tr><td>Aino<td>Turku</table>"
    assert [text for _, _, text in found("a.xls", page.encode())] == ["Name | Town", "Aino | Turku"]
    assert found("a.xls", b"Name\tTown\nAino\tTurku\n") == [("", "row 2", "Name: Aino\nTown: Turku")]


def test_a_workbook_without_values_is_empty() -> None:
    assert refusal("a.xlsx", saved(make_workbook(Sheet1=[]))) == "empty"


def test_the_end_of_a_workbook_beyond_the_limit_is_named_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    content = saved(make_workbook(Stock=STOCK, Staff=STAFF))
    monkeypatch.setattr(lancelot_reading, "MAX_CHARACTERS", 120)
    document = read("a.xlsx", content)
    assert len(document.sections) == 2
    assert document.missing == "is read up to row 2 of Staff, where it passes the limit of its size"
    monkeypatch.setattr(lancelot_reading, "MAX_CHARACTERS", 12)
    assert refusal("a.xlsx", content).startswith("holds more than 12 characters")
    monkeypatch.setattr(lancelot_reading, "MAX_WORKBOOK", 1000)
    assert refusal("a.xlsx", content) == "unpacks to more than 0 MB"


def test_of_a_workbook_of_numbers_only_the_beginning_is_taken() -> None:
    limits = [
        lancelot_reading.chunk_limit(read("a.xlsx", saved(make_workbook(Sheet1=rows))))
        for rows in ([["Time", "Volt"], [1, 2.5]], [["Time", "Remark"], [1, "valve opened"]])
    ]
    assert limits == [lancelot_reading.MAX_NUMBER_CHUNKS, lancelot_reading.MAX_CHUNKS]


def test_what_office_leaves_beside_an_open_document_is_left_out() -> None:
    with pytest.raises(IgnoredError, match="lock file"):
        lancelot_reading.refuse_unread("~$stock.xlsx")


def test_a_workbook_that_breaks_off_anywhere_or_takes_all_memory_is_refused(tmp_path: Path) -> None:
    content = (OFFICE_FILES / "stock.xls").read_bytes()
    assert {refusal("a.xls", content[:length]) for length in range(100, 6360, 20)} == {
        "is damaged, or no XLS file",
        "is a damaged spreadsheet (PanicException)",
    }
    far = '<row r="{0}"><c r="{1}{0}"><v>1</v></c></row>'
    (tmp_path / "far.xlsx").write_bytes(make_xlsx(far.format(1, "A") + far.format(1_048_576, "XFD")))
    with lancelot_reading.Extractor([sys.executable, lancelot.__file__, "extract"]) as extractor:
        failed = extractor.extract(tmp_path / "far.xlsx").failed
    assert failed == "takes more than 2 GB of memory to read, or breaks the library that reads it"


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        ("EncryptedPackage", "is protected by a password"),
        ("WordDocument", "is a Word document of the old format: save it as DOCX"),
        ("PowerPoint Document", "is a presentation of the old format: save it as PPTX"),
        ("__properties_version1.0", "is a message of Outlook: save it as EML"),
        ("Workbook", "is a damaged spreadsheet (CalamineError)"),
        ("Unknown", "is damaged, or no DOC file"),
    ],
)
def test_files_of_old_office_programs_are_named_by_the_first_stream_in_them(stream: str, reason: str) -> None:
    streams = [name.encode("utf-16-le").ljust(128, b"\0") for name in (stream, "Workbook"[: 8 * (stream != "Unknown")])]
    content = bytes.fromhex("d0cf11e0a1b11ae1") + "Book".encode("utf-16-le") + b"." * 600 + b"".join(streams)
    assert refusal("a.doc", content) == reason


# Presentations


def make_deck() -> Any:
    from pptx import Presentation
    from pptx.util import Inches

    deck = Presentation()
    first = deck.slides.add_slide(deck.slide_layouts[0])
    first.placeholders[1].text = "for Turku"
    first.shapes.title.text = "Harbour\nplan"
    second = deck.slides.add_slide(deck.slide_layouts[1])
    second.shapes.title.text = "Budget"
    second.placeholders[1].text = "dredging\ncranes"
    table = second.shapes.add_table(2, 2, Inches(1), Inches(3), Inches(4), Inches(1)).table
    for number, text in enumerate(("Year", "Cost", "2025", "7 M")):
        table.cell(number // 2, number % 2).text = text
    second.notes_slide.notes_text_frame.text = "mention the ferry"
    deck.slides.add_slide(deck.slide_layouts[6]).shapes.add_textbox(0, 0, 99, 99).text_frame.text = "no title"
    return deck


SLIDES = [
    *[("Harbour plan", "slide 1", text) for text in ("Harbour plan", "for Turku")],
    *[("Budget", "slide 2", text) for text in ("Budget", "dredging", "cranes", "Year | Cost", "2025 | 7 M")],
    ("Budget", "slide 2", "mention the ferry"),
    ("", "slide 3", "no title"),
]


def test_a_presentation_is_read_slide_by_slide_below_its_titles_with_tables_and_notes() -> None:
    for name in ("a.pptx", "a.pdf", "a.docx"):
        assert found(name, saved(make_deck())) == SLIDES
    deck = make_deck()
    deck.core_properties.title = "The harbour"
    order = deck.slides._sldIdLst  # noqa: SLF001 - the library has no call that moves a slide
    order.insert(0, order[2])
    assert [section[:2] for section in found("a.pptx", saved(deck))][:2] == [
        ("The harbour", "slide 1"),
        ("Harbour plan", "slide 2"),
    ]
    places = [chunk.place for chunk in lancelot_reading.cut_document(read("a.pptx", saved(make_deck())), name="a.pptx")]
    assert places == ["slide 1", "slide 2", "slide 3"]


def test_an_opendocument_presentation_is_read_as_one_of_powerpoint() -> None:
    slides = found("a.odp", (OFFICE_FILES / "deck.odp").read_bytes())
    assert [(title, place, text.removeprefix("- ")) for title, place, text in slides] == SLIDES


def slide(shapes: str) -> str:
    return f"<p:sld {POINT}>{shapes}</p:sld>"


def shape(text: str, role: str = "") -> str:
    place = f'<p:nvSpPr><p:nvPr><p:ph type="{role}"/></p:nvPr></p:nvSpPr>' if role else ""
    return f"<p:sp>{place}<p:txBody>{runs(text)}</p:txBody></p:sp>"


def runs(text: str) -> str:
    return f"<a:p>\n<a:r>\n<a:t>{text[:3]}</a:t></a:r>\n<a:r><a:t>{text[3:]}</a:t></a:r></a:p>"


def test_a_title_holds_for_its_whole_slide_and_what_every_slide_has_is_not_read() -> None:
    fallback = f"<mc:AlternateContent {MARKUP}><mc:Choice>{shape('choice')}</mc:Choice><mc:Fallback>{shape('fallback')}</mc:Fallback></mc:AlternateContent>"
    body = shape("before") + shape("Heading", "title") + shape("7", "sldNum") + shape("May 2024", "dt") + fallback
    diagram = f"<d:pt {POINT} xmlns:d='d'><d:t>{runs('diagram')}</d:t></d:pt>"
    content = make_pptx(
        {"slides/a.xml": slide(body), "slides/_rels/a.xml.rels": relations(diagramData="/ppt/d.xml"), "d.xml": diagram},
        "slides/a.xml",
        "slides/a.xml",
    )
    assert found("a.pptx", content) == [
        ("Heading", "slide 1", text) for text in ("before", "Heading", "choice", "diagram")
    ]


def test_the_title_and_the_names_in_a_chart_are_read_and_its_numbers_are_not() -> None:
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE

    deck = make_deck()
    data = CategoryChartData()
    data.categories = ["Turku", "Oslo"]
    data.add_series("ferries", (12345, 2))
    chart = deck.slides[2].shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, 0, 0, 99, 99, data).chart
    chart.has_title = True
    chart.chart_title.text_frame.text = "Arrivals"
    texts = [text for _, place, text in found("a.pptx", saved(deck)) if place == "slide 3"]
    assert texts == ["no title", "Arrivals", "ferries", "Turku Oslo"]


def test_a_presentation_whose_slides_are_gone_is_damaged() -> None:
    assert refusal("a.pptx", make_pptx({}, "slides/a.xml")) == "is a damaged presentation (KeyError)"
    assert refusal("a.pptx", make_pptx({"a.xml": "<p:sld>"}, "a.xml")) == "is a damaged presentation (ParseError)"
    assert refusal("a.pptx", make_pptx({"a.xml": slide("")}, "a.xml")) == "empty"


# OpenDocument


def test_an_opendocument_text_has_heading_paths_lists_and_tables() -> None:
    from odfdo import Document, Header, List, Paragraph, Table

    document = Document("text")
    document.body.clear()
    table = Table("Oars")
    table.set_values([["Kind", "Length"], ["sculls", "290"]])
    for part in (Paragraph("Preface"), Header(1, "Boats"), Paragraph("A skiff  is light."), Header(2, "Oars")):
        document.body.append(part)
    document.body.append(List(["ash", "spruce"]))
    document.body.append(table)
    document.meta.title = "On boats"
    assert found("a.odt", saved(document)) == [
        ("On boats", "paragraph 1", "Preface"),
        ("Boats", "paragraph 2", "Boats"),
        ("Boats", "paragraph 3", "A skiff is light."),
        *[
            ("Boats > Oars", f"paragraph {number}", text)
            for number, text in enumerate(["Oars", "- ash", "- spruce"], 4)
        ],
        *[
            ("Boats > Oars", f"paragraph {number}", text)
            for number, text in enumerate(["Kind | Length", "sculls | 290"], 7)
        ],
    ]


def test_an_opendocument_spreadsheet_is_read_as_a_workbook_of_excel() -> None:
    from odfdo import Document, Table

    document = Document("spreadsheet")
    document.body.clear()
    table = Table("Staff")
    table.set_values([["Name", "Since"], ["Aino", dt.date(2024, 3, 1)]])
    document.body.append(table)
    assert found("a.ods", saved(document)) == [("Staff", "row 2", "Name: Aino\nSince: 2024-03-01")]


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ("<text:p>one<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>why</text:p></text:note-body></text:note> two</text:p>", ["one [1 why] two"]),
        ("<text:tracked-changes><text:p>gone</text:p></text:tracked-changes><text:p>here</text:p>", ["here"]),
        ("<text:p>said<office:annotation><text:p>comment</text:p></office:annotation></text:p>", ["said"]),
        ("<text:h text:outline-level='1'>a<text:line-break/>b</text:h><text:p>a<text:line-break/>b<text:s/>c</text:p>", ["a b", "a", "b c"]),
        ("<text:p>see <draw:frame><draw:image/><svg:title>a map</svg:title></draw:frame>here</text:p>", ["see a map here"]),
    ],
    ids=["footnote", "tracked change", "comment", "line break", "picture"],
)  # fmt: skip
def test_of_an_opendocument_text_is_read_what_a_person_sees(body: str, texts: list[str]) -> None:
    assert [text for _, _, text in found("a.odt", make_odt(body))] == texts


def test_an_opendocument_file_with_a_password_or_of_another_kind_is_refused() -> None:
    assert refusal("a.odt", make_odt("", manifest="<a><encryption-data/></a>")) == "is protected by a password"
    assert refusal("a.odt", make_zip({"META-INF/manifest.xml": "<a/>"})) == "is a damaged OpenDocument file (KeyError)"
    assert refusal("a.odt", make_odt("<text:p>")) == "is a damaged OpenDocument file (ParseError)"


# Books


def test_a_book_has_the_titles_of_its_table_of_contents() -> None:
    sections = found("a.epub", (OFFICE_FILES / "boats.epub").read_bytes())
    assert [text for _, _, text in sections][:2] == ["Boats", "A skiff is light."]
    assert {section[:2] for section in sections} == {("Boats", "section 1")}


NAV = """<html xmlns:e="ops"><nav e:type="landmarks"><ol><li><a href="d.html">Start</a></li></ol></nav><nav e:type="toc"><ol>
<li><span>Part <b>One</b></span><ol><li><a href="text/b%20b.html">I. Loomings</a></li>
<li><a href="text/b%20b.html#more">More</a></li></ol></li><li><a href="c.html#x">Two</a></li></ol></nav></html>"""
NCX = """<ncx><navMap><navPoint><navLabel><text>Part One</text></navLabel><content src="a.html"/><navPoint><navLabel>
<text>I. Loomings</text></navLabel><content src="text/b%20b.html"/></navPoint></navPoint><navPoint><navLabel><text>Two</text>
</navLabel><content src="c.html"/></navPoint></navMap><pageList><pageTarget><navLabel><text>7</text></navLabel>
<content src="d.html"/></pageTarget></pageList></ncx>"""
PAGES = {
    "c.html": "<title>Whales</title><h1>Another</h1><p>third</p>",
    "text/b b.html": "<title>Whales</title><h1>Loomings</h1><p>second",
    "d.html": "<title>d</title><p>fourth</p>",
}


@pytest.mark.parametrize(("name", "contents"), [("nav.xhtml", NAV), ("toc.ncx", NCX)])
def test_a_book_is_read_in_the_order_of_its_spine_below_titles_with_their_path(name: str, contents: str) -> None:
    content = make_epub(PAGES | {name: contents}, "text/b%20b.html", name, "c.html", "gone.html", "d.html", "c.html")
    loomings = "Part One > I. Loomings"
    assert found("a.epub", content) == [
        *[(loomings, "section 1", "Loomings"), (loomings, "section 1", "second")],
        *[("Another", "section 2", "Another"), ("Another", "section 2", "third"), ("The whale", "section 4", "fourth")],
    ]


def test_a_book_without_a_table_of_contents_that_can_be_read_has_its_own_headings() -> None:
    assert found("a.epub", make_epub(PAGES | {"nav.xhtml": "<html>&nbsp;"}, "nav.xhtml", "c.html")) == [
        ("Another", "section 1", "Another"),
        ("Another", "section 1", "third"),
    ]


def test_a_book_that_is_sealed_or_broken_is_refused_and_one_with_sealed_fonts_is_read() -> None:
    sealed = "<a><CipherReference URI='OPS/text/b%20b.html'/></a>"
    content = make_epub(PAGES | {"../META-INF/encryption.xml": sealed}, "text/b%20b.html")
    assert refusal("a.epub", content) == "is protected by DRM: only programs of its shop can read it"
    fonts = make_epub(PAGES | {"../META-INF/encryption.xml": sealed.replace("text/b%20b.html", "f.otf")}, "d.html")
    assert found("a.epub", fonts) == [("The whale", "section 1", "fourth")]
    assert refusal("a.epub", make_zip({"META-INF/container.xml": "<a/>"})) == "is a damaged EPUB book (KeyError)"
    assert refusal("a.epub", make_epub({}, "d.html")) == "empty"


# A folder of all of them


def test_a_word_in_a_document_of_each_kind_is_found_by_a_search_with_its_title_and_place(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from docx import Document as WordDocument

    letter = WordDocument()
    letter.add_heading("Fares", 1)
    letter.add_paragraph("The kestrel is cheap.")
    documents = {
        "staff.xlsx": saved(make_workbook(Crew=[*STAFF, ["kestrel", "Oulu"]])),
        "plan.xlsb": make_xlsb(("Name", "Town"), ("kestrel", "Turku")),
        "text.odt": make_odt("<text:h text:outline-level='1'>Birds</text:h><text:p>A kestrel hovers.</text:p>"),
        "book.epub": make_epub({"nav.xhtml": NAV, "c.html": "<p>kestrel"}, "nav.xhtml", "c.html"),
        "deck.pptx": make_pptx({"a.xml": slide(shape("Sky", "title") + shape("kestrel"))}, "a.xml"),
        "letter.docx": saved(letter),
        "old.doc": bytes.fromhex("d0cf11e0a1b11ae1") + "WordDocument".encode("utf-16-le").ljust(64, b"\0"),
    }
    (tmp_path / "files").mkdir()
    for name, content in documents.items():
        (tmp_path / "files" / name).write_bytes(content)
    monkeypatch.setenv("LANCEDB_PATH", str(tmp_path / "db"))
    ended = run("index", str(tmp_path / "files"), "--no-embeddings")
    assert "old.doc: is a Word document of the old format: save it as DOCX" in ended.out
    hits = json.loads(run("search", "kestrel", "--search-type", "text", "--json").out)["hits"]
    assert sorted((Path(hit["source"]).name, hit["title"], hit["metadata"]["place"]) for hit in hits) == [
        ("book.epub", "Two", "section 1"),
        ("deck.pptx", "Sky", "slide 1"),
        ("letter.docx", "Fares", "paragraphs 1-2"),
        ("plan.xlsb", "Plan", "row 2"),
        ("staff.xlsx", "Crew", "rows 2-4"),
        ("text.odt", "Birds", "paragraphs 1-2"),
    ]


# Damage


def test_a_part_that_is_packed_by_another_method_or_sealed_is_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("ppt/presentation.xml", "<a/>")
    assert refusal("a.pptx", buffer.getvalue()) == "is a damaged presentation (BadZipFile)"
    sealed = bytearray(make_pptx({}))
    for mark, flags in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        for at in (found.start() for found in re.finditer(re.escape(mark), sealed)):
            sealed[at + flags] |= 1
    assert refusal("a.pptx", bytes(sealed)) == "is protected by a password"


OFFICE_DOCUMENTS = {
    "a.epub": lambda: make_epub(PAGES | {"nav.xhtml": NAV}, "d.html"),
    "a.docx": lambda: make_docx(paragraph("words")),
    "a.odt": lambda: make_odt("<text:p>words</text:p>"),
    "a.pptx": lambda: make_pptx({"a.xml": slide(shape("words"))}, "a.xml"),
    "a.xlsx": lambda: make_xlsx('<row r="1"><c r="A1" t="str"><v>words</v></c></row>'),
}


@given(st.sampled_from(sorted(OFFICE_DOCUMENTS)), st.floats(0, 1), st.binary(min_size=1, max_size=20))
def test_an_office_document_that_is_overwritten_anywhere_is_read_or_refused(
    name: str, place: float, junk: bytes
) -> None:
    content = OFFICE_DOCUMENTS[name]()
    at = int(len(content) * place)
    with contextlib.suppress(UnreadableError):
        read(name, content[:at] + junk + content[at + len(junk) :])


# Word documents


def test_of_tracked_changes_what_is_new_is_read_once_and_what_is_gone_is_not() -> None:
    run = "<w:r><w:t>{}</w:t><w:tab/></w:r>"
    gone = "<w:del><w:r><w:delText>taken out</w:delText><w:br/></w:r></w:del>"
    body = f"<w:p><w:moveFrom>{run.format('moved')}</w:moveFrom>{run.format('kept')}{gone}<w:ins>{run.format('put in')}</w:ins></w:p>"
    body += f"<w:p><w:pPr><w:rPr><w:moveTo/></w:rPr></w:pPr><w:moveTo>{run.format('moved')}</w:moveTo></w:p>"
    assert [section.text for section in read("a.docx", make_docx(body)).sections] == ["kept put in", "moved"]


def test_a_word_document_has_localized_headings_tables_and_notes() -> None:
    row = "<w:tr>" + "".join(f"<w:tc>{paragraph(text)}</w:tc>" for text in ("a", "b")) + "</w:tr>"
    body = (
        paragraph("Before")
        + paragraph("Eins", "berschrift1")
        + paragraph("words")
        + paragraph("Zwei", "berschrift2")
        + f"<w:tbl>{row}</w:tbl>"
        + paragraph("Drei", "berschrift1")
        + "<w:p><w:r><w:t>more</w:t><w:footnoteReference w:id='2'/></w:r></w:p>"
    )
    notes = f"<w:footnotes {WORD}><w:footnote w:id='2'>{paragraph('a note')}</w:footnote></w:footnotes>"
    core = '<c xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Mein Bericht</dc:title></c>'
    content = make_docx(body, footnotes=notes)
    with zipfile.ZipFile(buffer := io.BytesIO(content), "a") as archive:
        archive.writestr("docProps/core.xml", core)
    document = read("a.docx", buffer.getvalue())
    assert [(section.title, section.text) for section in document.sections] == [
        *[("Mein Bericht", "Before"), ("Eins", "Eins"), ("Eins", "words"), ("Eins > Zwei", "Zwei")],
        *[("Eins > Zwei", "a | b"), ("Drei", "Drei"), ("Drei", "more[1]"), ("Mein Bericht", "a note")],
    ]
    assert [section.place for section in document.sections] == [*(f"paragraph {n}" for n in range(1, 8)), "note 1"]
    places = [(chunk.title, chunk.place) for chunk in lancelot_reading.cut_document(document, name="a.docx")]
    assert places[1:3] == [("Eins", "paragraphs 2-3"), ("Eins > Zwei", "paragraphs 4-5")]


def test_the_text_of_a_text_box_is_read_once() -> None:
    mc = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    choice = f"<mc:Choice>{paragraph('boxed')}</mc:Choice><mc:Fallback>{paragraph('boxed')}</mc:Fallback>"
    body = f"<w:p><w:r><w:t>x</w:t><mc:AlternateContent {mc}>{choice}</mc:AlternateContent></w:r></w:p>"
    assert sorted(section.text for section in read("a.docx", make_docx(body)).sections) == ["boxed", "x"]


RUN = "<w:r><w:t>{}</w:t></w:r>"


@pytest.mark.parametrize(
    ("inner", "text"),
    [
        (f'<w:fldSimple w:instr=" MERGEFIELD &quot;a&quot; > "><w:rPr/>{RUN.format("value")}</w:fldSimple>', "value"),
        ("<m:oMathPara><m:oMath><m:f><m:num><m:r><m:t>x=1</m:t></m:r></m:num></m:f></m:oMath></m:oMathPara>", "x=1"),
        (f'<w:dir w:val="rtl">{RUN.format("dir")}</w:dir><w:bdo w:val="rtl">{RUN.format("bdo")}</w:bdo>', "dirbdo"),
        (
            f"<w:r><w:ruby><w:rubyPr/><w:rt>{RUN.format('top')}</w:rt><w:rubyBase>{RUN.format('base')}</w:rubyBase></w:ruby></w:r>",
            "topbase",
        ),
        ("<w:r><w:t>a</w:t><w:noBreakHyphen/><w:t>b</w:t></w:r>", "a-b"),
        ("<w:r><w:t>a</w:t><w:cr/><w:t>b</w:t></w:r>", "a\nb"),
    ],
    ids=["field", "equation", "direction", "annotated word", "hyphen", "carriage return"],
)
def test_text_in_rarer_elements_of_a_word_document_is_read(inner: str, text: str) -> None:
    math = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
    body = f"<w:p {math}>{RUN.format('start ')}{inner}{RUN.format(' end')}</w:p>"
    assert "\n".join(section.text for section in read("a.docx", make_docx(body)).sections) == f"start {text} end"


def test_a_zip_that_is_no_document_is_refused_by_that_name_only() -> None:
    content = make_zip({"other.txt": "x" * 1000})
    assert refusal("a.docx", content) == "is damaged, or no DOCX file"
    assert refusal("a.unknown", content) == "archive"


def test_what_a_word_document_may_not_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entities = "".join(f'<!ENTITY a{at} "{f"&a{at - 1};" * 10}">' for at in range(1, 10))
    bomb = f'<!DOCTYPE x [<!ENTITY a0 "aaaa">{entities}]><x>&a9;</x>'
    assert "damaged" in refusal("a.docx", make_docx(paragraph("x"), footnotes=bomb))
    assert "damaged" in refusal("a.docx", make_docx("<w:p>"))
    assert "damaged" in refusal("a.docx", make_docx(paragraph("hello"))[:-40])
    monkeypatch.setattr(lancelot_reading, "MAX_UNPACKED", 1_000_000)
    assert "more than 1 MB" in refusal("a.docx", make_docx(paragraph("x" * 2_000_000)))
