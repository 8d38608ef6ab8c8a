"""Mails, mailboxes and what is attached to them become documents."""

from __future__ import annotations

import contextlib
import email.message
import mailbox
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_index_reading import make_pdf

import lancelot_reading
from lancelot_reading import Extraction, UnreadableError, read_document

if TYPE_CHECKING:
    from pathlib import Path

MOMENT = 1_709_544_000.0
HEAD = {"From": "Zoë <zoe@example.org>", "To": "bob@example.org", "Date": "Mon, 04 Mar 2024 10:20:00 +0100"}


def make_mail(text: str = "", subject: str = "Hello", **headers: str) -> email.message.EmailMessage:
    message = email.message.EmailMessage()
    for name, value in {**HEAD, "Subject": subject, "Message-ID": "<1@example.org>", **headers}.items():
        message[name] = value
    if text:
        message.set_content(text)
    return message


def extract(path: Path, content: bytes) -> dict[str, Extraction]:
    """What a file gives and its parts do, by their names."""
    path.write_bytes(content)
    return {extraction.name: extraction for extraction in lancelot_reading.extract_file(str(path))}


def text_of(content: bytes, name: str = "a.eml") -> str:
    (section,) = read_document(name, content).sections
    return section.text


def test_a_mail_has_its_subject_as_title_and_who_wrote_it_to_whom_and_when_before_its_text() -> None:
    message = make_mail("The pressure is café.\n", "Grüße aus 東京: " + "long words " * 20)
    message.add_alternative("<p>not this</p>", subtype="html")
    document = read_document("a.eml", message.as_bytes())
    (section,) = document.sections
    assert section.title == "Grüße aus 東京: " + ("long words " * 20).strip()
    assert section.text == (
        "From: Zoë <zoe@example.org>\nTo: bob@example.org\nDate: Mon, 04 Mar 2024 10:20:00 +0100\n\nThe pressure is café."
    )
    assert (document.extractor, document.date) == ("mail", MOMENT)


def test_of_a_mail_without_plain_text_the_page_is_read_and_a_footer_does_not_hide_it() -> None:
    message = make_mail()
    message.set_content("<h1>Offer</h1><p>a wombat</p><style>p {}</style>", subtype="html")
    assert text_of(message.as_bytes()).endswith("\n\nOffer\na wombat")
    message.make_mixed()
    message.attach(make_mail("To leave the list, write.\n"))
    footer = message.get_payload()[-1]
    for name in set(footer.keys()) - {"Content-Type"}:
        del footer[name]
    assert text_of(message.as_bytes()).endswith("To leave the list, write.\n\nOffer\na wombat")


@pytest.mark.parametrize("name", ["a.eml", "12345.M1P2.host:2,S", "a.mht"])
def test_a_mail_is_known_by_its_head_and_by_its_suffix(name: str) -> None:
    assert read_document(name, make_mail("words").as_bytes()).extractor == "mail"
    assert read_document("a.eml", b"Subject: x\n\nwords").extractor == "mail"


@pytest.mark.parametrize("content", [b"words", b"note: x\nfrom: y\ndate: z\n\nwords", b"From here on\n\nwords"])
def test_what_only_looks_like_a_mail_is_text(content: bytes) -> None:
    assert read_document("a.txt", content).extractor == "text"


def test_a_change_that_git_wrote_and_a_mail_in_a_text_are_no_mails() -> None:
    patch = b"From 0123abc Mon Sep 17 00:00:00 2001\n" + make_mail("diff --git").as_bytes()
    assert read_document("0001-tea.patch", patch).extractor == "text"
    assert read_document("a.md", make_mail("words").as_bytes()).extractor == "markdown"
    assert read_document("March.txt", patch).extractor == "mailbox"


@pytest.mark.parametrize(
    ("head", "body", "text"),
    [
        (b"Content-Type: text/plain; charset=iso-8859-1", b"caf\xe9 \x96 \x80", "café – €"),  # noqa: RUF001
        (b"Content-Type: text/plain; charset=utf-8", b"caf\xe9 cr\xe8me", "café crème"),
        (b"Content-Type: text/plain; charset=no-such", "Größe".encode(), "Größe"),
        (b"Content-Type: text/plain; charset=hex", b"Gr\xc3\xb6\xc3\x9fe", "Größe"),
        (b"", "наша почта".encode("koi8-r"), "наша почта"),
        (b"Content-Transfer-Encoding: quoted-printable", b"na=C3=AFve a=\r\nb", "naïve ab"),
        (b"Content-Transfer-Encoding: base64", b"d29yZHM=", "words"),
        (b"Content-Transfer-Encoding: base64", b"d29yZHM", "words"),
        (b"Content-Type: text/plain; charset=iso-2022-jp", "日本語".encode("iso-2022-jp"), "日本語"),
    ],
)
def test_the_text_of_a_mail_is_decoded_as_declared_or_as_it_is(head: bytes, body: bytes, text: str) -> None:
    assert text_of(b"Subject: x\nFrom: a\n%s\n\n%s" % (head, body)) == f"From: a\n\n{text}"


@pytest.mark.parametrize(
    ("value", "subject"),
    [
        ("=?utf-8?q?Gr=C3=BC=C3=9Fe?=", "Grüße"),
        ("=?utf-8?b?5pel?= =?utf-8?b?5pys?= (Japan)", "日本 (Japan)"),
        ("=?utf-8?b?5pc=?= =?utf-8?b?pQ==?=", "日"),  # a character cut in two
        ("Größe", "Größe"),
        ("=?no-such?q?words?=", "words"),
        ("=?utf-8?b?A?=", "=?utf-8?b?A?="),
        ("", "(no subject)"),
    ],
)
def test_a_subject_is_decoded_and_a_broken_one_costs_nothing(value: str, subject: str) -> None:
    (section,) = read_document("a.eml", f"From: a\nSubject: {value}\n\nwords".encode()).sections
    assert section.title == subject


@pytest.mark.parametrize(
    ("written", "date"),
    [
        ("Mon, 04 Mar 2024 09:20:00 -0000", MOMENT),
        ("4 Mar 2024 09:20", MOMENT),
        ("Mon, 04 Mar 2024 04:20:00 EST (winter)", MOMENT),
        ("Mon, 99 Foo 2024", None),
        ("9" * 5000, None),
    ],
)
def test_the_date_of_a_mail_is_that_of_its_zone_or_none(written: str, date: float | None) -> None:
    assert read_document("a.eml", f"From: a\nDate: {written}\n\nwords".encode()).date == date


def test_paragraphs_that_flow_are_whole_and_quotes_and_signatures_stay_apart() -> None:
    text = b"One \nparagraph.\n> quoted \n> words \nmine\n -- stuffed\n-- \nBob \n-- \nBob"
    message = b"From: a\nContent-Type: text/plain; format=flowed%s\n\n" + text
    kept = "From: a\n\nOne paragraph.\n> quoted words \nmine\n-- stuffed\n-- \nBob \n-- \nBob"
    assert text_of(message % b"") == kept
    assert text_of(message % b"; delsp=yes") == kept.replace("One p", "Onep").replace(
        "quoted words ", "quotedwords"
    ).replace("Bob \n", "Bob\n")


def test_files_that_are_attached_are_documents_below_the_mail(tmp_path: Path) -> None:
    inner = make_mail("an inner word", "About: this/that", Date="Mon, 04 Mar 2024 09:20:01 +0000")
    inner.add_attachment("a,b\n1,quokka\n", filename="table.csv")
    message = make_mail("words")
    for filename in ("Übersicht.pdf", "Übersicht.pdf", "../../etc/Übersicht.pdf"):
        message.add_attachment(make_pdf("pressure"), maintype="application", subtype="pdf", filename=filename)
    message.add_attachment(b"\x89PNG\r\n", maintype="image", subtype="png", filename="a.png")
    message.add_attachment(b"%PDF-broken", maintype="application", subtype="pdf", filename="broken.pdf")
    message.add_attachment(inner)
    message.add_attachment(b"xyz", maintype="application", subtype="pgp-signature", filename="signature.asc")
    found = extract(tmp_path / "a.eml", message.as_bytes())
    assert list(found) == [
        *("", "Übersicht.pdf", "Übersicht (2).pdf", "_.._etc_Übersicht.pdf", "a.png", "broken.pdf"),
        *("About_ this_that.eml", "About_ this_that.eml/table.csv"),
    ]
    assert [found[""].chunks[0].title, found["Übersicht (2).pdf"].chunks[0].text] == ["Hello", "pressure"]
    assert found["a.png"].ignored
    assert found["broken.pdf"].failed.startswith("is a damaged PDF")
    assert found["Übersicht.pdf"].date == MOMENT
    assert found["About_ this_that.eml/table.csv"].date == MOMENT + 1
    assert found["About_ this_that.eml/table.csv"].chunks[0].text == "a: 1\nb: quokka"


def test_each_mail_of_a_mailbox_is_a_document(tmp_path: Path) -> None:
    first, second = make_mail("From now on\n\nFrom me, 10:20\n", "first"), make_mail("two", "second")
    first.add_attachment("quokka", filename="note.txt")
    with contextlib.closing(mailbox.mbox(tmp_path / "in.mbox")) as box:
        for message in (first, second):
            box.add(message)
    content = (tmp_path / "in.mbox").read_bytes()
    for name in ("in.mbox", "Inbox"):
        found = extract(tmp_path / name, content)
        assert list(found) == ["", "1.eml", "2.eml", "1.eml/note.txt"]
        assert found[""].chunks == ()
        assert [found[mail].chunks[0].title for mail in ("1.eml", "2.eml")] == ["first", "second"]
        assert found["1.eml"].chunks[0].text.endswith("\n\nFrom now on\n\nFrom me, 10:20")


def test_an_encrypted_mail_says_so_and_is_found_by_its_subject() -> None:
    head = b"From: a\nSubject: secret\nContent-Type: multipart/encrypted; boundary=x\n\n--x\n\nVersion: 1\n--x--\n"
    document = read_document("a.eml", head)
    assert document.missing == "is read but for its text, which is encrypted"
    assert document.sections[0].title == "secret"


def test_how_many_files_a_mail_holds_and_how_deep_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = make_mail("deepest")
    for depth in range(lancelot_reading.MAX_PART_DEPTH + 2):
        outer = make_mail(f"depth {depth}")
        outer.add_attachment(message)
        message = outer
    found = extract(tmp_path / "a.eml", message.as_bytes())
    assert len(found) == lancelot_reading.MAX_PART_DEPTH + 1
    assert found["/".join(["Hello.eml"] * lancelot_reading.MAX_PART_DEPTH)].missing == "is read but for 1 part of it"
    monkeypatch.setattr(lancelot_reading, "MAX_ATTACHED", 2)
    for number in range(4):
        outer.add_attachment(f"file {number}", filename="a.txt")
    found = extract(tmp_path / "a.eml", outer.as_bytes())
    assert found[""].missing == "is read but for 3 attached files"
    assert "a.txt" in found
    monkeypatch.setattr(lancelot_reading, "MAX_CHUNKS", 1)
    *_, last = extract(tmp_path / "a.eml", outer.as_bytes()).values()
    assert last.missing == "is the last that is read of a file that gives more than 1 chunks"


PIECES = st.sampled_from(
    [
        *("From a@b Mon Mar  4 10:20:00 2024\n", "From: a\n", "Date: x\n", "Subject: =?utf-8?q?=C3?=\n", "\n", "--x\n", "--x--\n"),
        *("Content-Type: multipart/mixed; boundary=x\n", "Content-Type: multipart/alternative; boundary=x\n", "words\n"),
        *("Content-Type: text/html; charset=utf-16\n", "Content-Type: message/rfc822\n", "Message-ID: <1@b>\n", "=\n"),
        *("Content-Type: text/plain; format=flowed\n", "Content-Transfer-Encoding: base64\n", "AAAA\n", " folded\n", "\x00é"),
        *("Content-Disposition: attachment; filename*=utf-8''%ff/..%00\n", 'Content-Disposition: inline; filename="a.eml"\n'),
        *("Content-Type: message/delivery-status\n", "Content-Type: /\n", "Content-Transfer-Encoding: x-uuencode\n", "<p>x"),
    ]
)  # fmt: skip


@given(st.sampled_from(["a.eml", "a.mbox", "a"]), st.lists(PIECES, max_size=20).map("".join).map(str.encode))
@example("a.eml", b"From: a\nContent-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: message/rfc822\n\n--x--\n")
def test_mails_of_any_pieces_give_chunks_or_a_reason(name: str, content: bytes) -> None:
    waiting = [(name, content)]
    for inner, part in waiting:
        assert "/" not in inner
        try:
            document = read_document(inner, part)
        except UnreadableError:
            continue
        waiting += document.parts
        for chunk in lancelot_reading.cut_document(document, name=inner):
            chunk.text.encode()
