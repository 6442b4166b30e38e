"""Converts values in the JSON of a row to those that a driver would have returned, for adapters of object-relational mappers.

A value that Python cannot represent (such as an infinite date) raises ValueError. The adapter then reads the table.
"""

import re
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Callable, Dict
from uuid import UUID

FRACTION = re.compile(r'\.(\d+)')


def iso(text: str) -> str:
    """The text with six digits after the point, which Python before 3.11 requires."""
    return FRACTION.sub(lambda found: '.' + found.group(1).ljust(6, '0'), text)


def binary(text: str) -> bytes:
    if not text.startswith('\\x'):
        raise ValueError(text)
    return bytes.fromhex(text[2:])


def plain(value: Any) -> Any:
    """JSON inside a row, with the types of numbers that json.loads makes."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def decimal(value: Any) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(str(value))




CONVERTERS: Dict[Any, Callable[[Any], Any]] = {
    int: int, str: str, bool: bool, float: float, Decimal: decimal, bytes: binary, dict: plain,
    UUID: UUID, date: date.fromisoformat, time: lambda text: time.fromisoformat(iso(text)),
    datetime: lambda text: datetime.fromisoformat(iso(text))}
