"""The plot of a sweep: one point for each number of clusters, inside the picture, as well-formed SVG."""

import xml.etree.ElementTree as ET

import pytest

from veilmeans.pipelines.reporting.sweep_report import plot

CASES = {
    "falling": [(2, 812.5), (3, 401.25), (4, 399.0), (10, 1.5)],
    "one": [(3, 7.0)],
    "all zero": [(1, 0.0), (2, 0.0)],
    "many": [(k, 1e9 / k) for k in range(1, 101)],
}


@pytest.mark.parametrize("points", CASES.values(), ids=CASES)
def test_every_number_of_clusters_is_a_point_inside_the_picture(points: list[tuple[int, float]]) -> None:
    drawn = ET.fromstring(str(plot(points)))
    _, _, width, height = map(float, drawn.attrib["viewBox"].split())
    marks = [each for each in drawn.iter() if each.get("class") == "point"]
    assert len(marks) == len(points)
    places = [(float(mark.attrib["cx"]), float(mark.attrib["cy"])) for mark in marks]
    assert all(0 < x < width and 0 < y < height for x, y in places)
    assert [x for x, _ in places] == sorted({x for x, _ in places})
    heights = [y for _, y in sorted(places)]
    assert heights == sorted(heights)  # the inertia falls, and 0 is at the bottom
    assert [mark[0].text for mark in marks] == [f"{k} clusters: inertia {value:,.6g}" for k, value in points]
