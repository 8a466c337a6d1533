"""All wrong solutions, in the order of the course."""

from tests.course.wrong import (
    week_1,
    week_2,
    week_3,
    week_3_pages,
    week_4,
    week_5,
    week_5_forms,
    week_5_load,
    week_5_replicas,
    week_6,
    week_6_hybrid,
    week_6_kv,
    week_7,
    week_7_selection,
)

WRONG = [
    *week_1.WRONG,
    *week_2.WRONG,
    *week_3_pages.WRONG,
    *week_3.WRONG,
    *week_4.WRONG,
    *week_5.WRONG,
    *week_5_forms.WRONG,
    *week_5_load.WRONG,
    *week_5_replicas.WRONG,
    *week_6.WRONG,
    *week_6_hybrid.WRONG,
    *week_6_kv.WRONG,
    *week_7.WRONG,
    *week_7_selection.WRONG,
]
