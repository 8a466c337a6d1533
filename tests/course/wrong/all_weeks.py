"""All mistakes, in the order of the course."""

from tests.course.wrong import week_1, week_2, week_3, week_3_pages, week_4, week_5

WRONG = [
    *week_1.WRONG,
    *week_2.WRONG,
    *week_3_pages.WRONG,
    *week_3.WRONG,
    *week_4.WRONG,
    *week_5.WRONG,
]
