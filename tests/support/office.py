"""Makes office documents of a few parts, as no library would."""

from __future__ import annotations

import io
import posixpath
import struct
import zipfile
from collections.abc import Mapping

WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
STYLES = f"""<w:styles {WORD}>
<w:style w:type="paragraph" w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>
<w:style w:type="paragraph" w:styleId="berschrift2"><w:name w:val="heading 2"/></w:style>
</w:styles>"""


def paragraph(text: str, style: str = "") -> str:
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"


def make_zip(parts: Mapping[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def make_docx(body: str, **parts: str) -> bytes:
    """A Word document of this body and further parts."""
    document = f"<w:document {WORD}><w:body>{body}</w:body></w:document>"
    further = {f"word/{name}.xml": content for name, content in parts.items()}
    return make_zip({"word/document.xml": document, "word/styles.xml": STYLES} | further)


OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def relations(**targets: str) -> str:
    """The relations of a part: a kind and what it leads to each, numbered from rId1."""
    space = "http://schemas.openxmlformats.org/package/2006/relationships"
    each = (
        f'<Relationship Id="rId{number}" Type="{OFFICE}/{kind.rstrip("0123456789")}" Target="{target}"/>'
        for number, (kind, target) in enumerate(targets.items(), 1)
    )
    return f'<Relationships xmlns="{space}">{"".join(each)}</Relationships>'


def make_xlsx(rows: str) -> bytes:
    """An Excel workbook of one sheet with these rows of XML."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    sheet = '<sheet name="Sheet1" sheetId="1" r:id="rId1"/>'
    return make_zip(
        {
            "_rels/.rels": relations(officeDocument="xl/workbook.xml"),
            "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{OFFICE}"><sheets>{sheet}</sheets></workbook>',
            "xl/_rels/workbook.xml.rels": relations(worksheet="worksheets/sheet1.xml"),
            "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{rows}</sheetData></worksheet>',
        }
    )


def make_xlsb(*rows: tuple[str, ...]) -> bytes:
    """An Excel workbook of the binary form, with a sheet of these texts."""

    def text(value: str) -> bytes:
        return struct.pack("<I", len(value)) + value.encode("utf-16-le")

    def record(kind: int, content: bytes = b"") -> bytes:
        mark = bytes([kind]) if kind < 128 else bytes([kind & 127 | 128, kind >> 7])
        return mark + bytes([len(content)]) + content

    cells = b"".join(
        record(0, struct.pack("<I13x", number))  # BrtRowHdr
        + b"".join(
            record(6, struct.pack("<II", column, 0) + text(cell)) for column, cell in enumerate(row)
        )  # BrtCellSt
        for number, row in enumerate(rows)
    )
    dimension = record(148, struct.pack("<4I", 0, len(rows) - 1, 0, len(rows[0]) - 1))  # BrtWsDim
    book = record(156, struct.pack("<II", 0, 1) + text("rId1") + text("Plan"))  # BrtBundleSh
    return make_zip(
        {
            "_rels/.rels": relations(officeDocument="xl/workbook.bin"),
            "xl/workbook.bin": record(131) + record(143) + book + record(144) + record(132),
            "xl/_rels/workbook.bin.rels": relations(worksheet="worksheets/sheet1.bin"),
            "xl/worksheets/sheet1.bin": record(129) + dimension + record(145) + cells + record(146) + record(130),
        }
    )


MARKUP = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
POINT = " ".join(
    f'xmlns:{prefix}="http://schemas.openxmlformats.org/{name}/2006/main"'
    for prefix, name in (("a", "drawingml"), ("p", "presentationml"))
)


def make_pptx(parts: Mapping[str, str], *slides: str) -> bytes:
    """A presentation of these parts, of which some are slides."""
    listed = "".join(f'<p:sldId id="{255 + number}" r:id="rId{number}"/>' for number in range(1, len(slides) + 1))
    deck = f'<p:presentation {POINT} xmlns:r="{OFFICE}"><p:sldIdLst>{listed}</p:sldIdLst></p:presentation>'
    links = relations(**{f"slide{number}": slide for number, slide in enumerate(slides)})
    main = {"ppt/presentation.xml": deck, "ppt/_rels/presentation.xml.rels": links}
    return make_zip(main | {f"ppt/{name}": content for name, content in parts.items()})


def make_odt(body: str, manifest: str = "<a/>") -> bytes:
    """An OpenDocument text of this body."""
    spaces = {"office": "office", "text": "text", "draw": "drawing", "svg": "svg-compatible"}
    names = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{space}:1.0"' for name, space in spaces.items()
    )
    return make_zip(
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "META-INF/manifest.xml": manifest,
            "content.xml": f"<office:document-content {names}><office:body>{body}</office:body></office:document-content>",
        }
    )


def make_epub(parts: Mapping[str, str], *spine: str) -> bytes:
    """A book of these parts, which lie in a folder `OPS`, in the order of its spine."""
    items = "".join(f'<item id="{number}" href="{part}"/>' for number, part in enumerate(spine))
    kinds = {"nav.xhtml": "properties='nav'", "toc.ncx": "media-type='application/x-dtbncx+xml'"}
    items += "".join(f'<item id="{part}" href="{part}" {kind}/>' for part, kind in kinds.items() if part in parts)
    order = "".join(f'<itemref idref="{number}"/>' for number in range(len(spine)))
    title = '<dc:title xmlns:dc="http://purl.org/dc/elements/1.1/">The whale</dc:title>'
    package = f'<package xmlns="http://www.idpf.org/2007/opf">{title}<manifest>{items}</manifest><spine>{order}</spine></package>'
    main = {"META-INF/container.xml": '<container><rootfile full-path="OPS/a.opf"/></container>', "OPS/a.opf": package}
    return make_zip(main | {posixpath.normpath(f"OPS/{name}"): content for name, content in parts.items()})
