"""Office documents and books: what real programs and libraries made, and what is broken or hostile."""

from __future__ import annotations

import datetime as dt
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from office import WORD, make_docx, make_xlsb, make_xlsx, make_zip, paragraph
from test_index_reading import read, refusal

import lancelot
import lancelot_reading

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
    book["Staff"].merge_cells("A2:A3")
    book["Hidden"].sheet_state = "hidden"
    for name in ("a.xlsx", "a.docx", "a.unknown"):
        assert found(name, saved(book)) == [
            ("Stock", "row 2", "Item: sprocket\nBought: 2024-03-01\nPrice: 1.25\nLeft: 40"),
            ("Stock", "row 3", "Item: ratchet\nBought: 2024-03-02 14:30:00\nPrice: 0.3\nLeft: True"),
            ("Staff", "row 2", "Name: Aino\nTown: Turku"),
            ("Staff", "row 3", "Town: Vaasa"),
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


def test_a_workbook_without_values_is_empty() -> None:
    assert refusal("a.xlsx", saved(make_workbook(Sheet1=[]))) == "empty"


def test_the_end_of_a_workbook_beyond_the_limit_is_named_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    content = saved(make_workbook(Stock=STOCK, Staff=STAFF))
    monkeypatch.setattr(lancelot_reading, "MAX_CHARACTERS", 120)
    document = read("a.xlsx", content)
    assert len(document.sections) == 2
    assert document.missing == "is read up to row 2 of the sheet Staff, where it passes the limit of its size"
    monkeypatch.setattr(lancelot_reading, "MAX_WORKBOOK", 1000)
    assert refusal("a.xlsx", content) == "unpacks to more than 0 MB"


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
    assert refusal("a.unknown", content) == "binary"


def test_what_a_word_document_may_not_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entities = "".join(f'<!ENTITY a{at} "{f"&a{at - 1};" * 10}">' for at in range(1, 10))
    bomb = f'<!DOCTYPE x [<!ENTITY a0 "aaaa">{entities}]><x>&a9;</x>'
    assert "damaged" in refusal("a.docx", make_docx(paragraph("x"), footnotes=bomb))
    assert "damaged" in refusal("a.docx", make_docx("<w:p>"))
    assert "damaged" in refusal("a.docx", make_docx(paragraph("hello"))[:-40])
    monkeypatch.setattr(lancelot_reading, "MAX_UNPACKED", 1_000_000)
    assert "more than 1 MB" in refusal("a.docx", make_docx(paragraph("x" * 2_000_000)))
