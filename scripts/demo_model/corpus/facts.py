"""Everyday facts: tables with question and answer templates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """A property y of several subjects x, such as the colour of grass.

    `topic`, `answer` and `questions` are templates of {x} and, in answers, {y}. `table` lists
    "x=y, x=y".
    """

    topic: str
    answer: str
    table: str
    questions: tuple[str, ...]

    def pairs(self) -> list[tuple[str, str]]:
        """Parses the table."""
        rows = (pair.strip().partition("=") for pair in self.table.split(","))
        return [(x, y) for x, _, y in rows]


RELATIONS = (
    Relation(
        "the opposite of {x}",
        "The opposite of {x} is {y}.",
        "hot=cold, big=small, fast=slow, up=down, day=night, open=closed, happy=sad, old=young,"
        "tall=short, hard=soft, wet=dry, full=empty, light=dark, left=right, early=late, near=far,"
        "rich=poor, strong=weak, clean=dirty, loud=quiet, heavy=light, true=false, thick=thin,"
        "high=low, wide=narrow, easy=difficult, first=last, sweet=bitter, win=lose, buy=sell",
        (
            "What is the opposite of {x}?",
            "Name the opposite of {x}.",
            "Which word is the opposite of {x}?",
            "Tell me the opposite of {x}.",
            "What word means the opposite of {x}?",
            "What's the opposite of {x}?",
            "Give me the opposite of the word {x}.",
            "The opposite of {x} is what?",
            "Give me the opposite of {x}.",
            "{x}: what is the opposite?",
            "Which word means the opposite of {x}?",
        ),
    ),
    Relation(
        "the colour of {x}",
        "The colour of {x} is {y}.",
        "grass=green, snow=white, coal=black, blood=red, a ripe banana=yellow, a clear sky=blue,"
        "a ripe tomato=red, milk=white, a lemon=yellow, chocolate=brown, an orange=orange,"
        "a crow=black, a flamingo=pink, an elephant=grey, a frog=green, a carrot=orange, "
        "salt=white",
        (
            "What is the colour of {x}?",
            "What colour is {x}?",
            "Which colour is {x}?",
            "Which colour does {x} have?",
            "What colour does {x} have?",
            "Name the colour of {x}.",
            "Tell me the colour of {x}.",
            "{x} has which colour?",
            "Tell me what colour {x} is.",
            "What's the colour of {x}?",
        ),
    ),
    Relation(
        "the number of legs of {x}",
        "{x} has {y} legs.",
        "a dog=four, a cat=four, a spider=eight, an ant=six, a bird=two, a horse=four, a bee=six,"
        "a crab=ten, a cow=four, a person=two, a beetle=six, a chicken=two, a butterfly=six",
        (
            "How many legs does {x} have?",
            "How many legs has {x}?",
            "What is the number of legs of {x}?",
            "Tell me how many legs {x} has.",
            "{x} has how many legs?",
            "Do you know how many legs {x} has?",
            "How many legs are there on {x}?",
            "Tell me the number of legs of {x}.",
            "What number of legs does {x} have?",
        ),
    ),
    Relation(
        "the young of {x}",
        "The young of {x} is called {y}.",
        "a dog=a puppy, a cat=a kitten, a cow=a calf, a horse=a foal, a sheep=a lamb, a goat=a kid,"
        "a pig=a piglet, a hen=a chick, a duck=a duckling, a goose=a gosling, a lion=a cub,"
        "a frog=a tadpole, a swan=a cygnet, a deer=a fawn, a kangaroo=a joey, an owl=an owlet",
        (
            "What is the young of {x} called?",
            "What do we call the young of {x}?",
            "What is the baby of {x} called?",
            "What do you call the baby of {x}?",
            "What do you call the young of {x}?",
            "What is the name for the young of {x}?",
            "Tell me what the young of {x} is called.",
            "How do we call the baby of {x}?",
            "What do we call the baby of {x}?",
        ),
    ),
    Relation(
        "the sound of {x}",
        "{x} says {y}.",
        "a dog=woof, a cat=meow, a cow=moo, a duck=quack, a sheep=baa, a lion=roar, a bee=buzz,"
        "a snake=hiss, a pig=oink, an owl=hoot, a mouse=squeak, a crow=caw",
        (
            "What sound does {x} make?",
            "What does {x} say?",
            "Which sound does {x} make?",
            "Which sound is made by {x}?",
            "What is the sound of {x}?",
            "What noise does {x} make?",
            "Tell me the sound of {x}.",
            "Tell me which sound {x} makes.",
            "What sound is made by {x}?",
        ),
    ),
    Relation(
        "what comes after {x}",
        "{y} comes after {x}.",
        "Monday=Tuesday, Tuesday=Wednesday, Wednesday=Thursday, Thursday=Friday, Friday=Saturday,"
        "Saturday=Sunday, Sunday=Monday, January=February, February=March, March=April, April=May,"
        "May=June, June=July, July=August, August=September, September=October, October=November,"
        "November=December, December=January, spring=Summer, summer=Autumn, autumn=Winter,"
        "winter=Spring",
        (
            "What comes after {x}?",
            "What comes right after {x}?",
            "What follows {x}?",
            "What comes next after {x}?",
            "Tell me what comes after {x}.",
            "What is next after {x}?",
            "After {x} comes what?",
            "Which one comes after {x}?",
            "Tell me what follows {x}.",
            "Which one follows {x}?",
        ),
    ),
    Relation(
        "what comes before {x}",
        "{y} comes before {x}.",
        "Tuesday=Monday, Wednesday=Tuesday, Thursday=Wednesday, Friday=Thursday, Saturday=Friday,"
        "Sunday=Saturday, Monday=Sunday, February=January, March=February, April=March, May=April,"
        "June=May, July=June, August=July, September=August, October=September, November=October,"
        "December=November, January=December",
        (
            "What comes before {x}?",
            "What comes right before {x}?",
            "What is just before {x}?",
            "Tell me what comes just before {x}.",
            "Tell me what comes before {x}.",
            "Before {x} comes what?",
            "Which one comes before {x}?",
            "What was before {x}?",
            "Which one is just before {x}?",
        ),
    ),
    Relation(
        "the number of days in {x}",
        "There are {y} days in {x}.",
        "a week=7, January=31, March=31, April=30, May=31, June=30, July=31, August=31,"
        "September=30, October=31, November=30, December=31, a year=365, a leap year=366",
        (
            "How many days are in {x}?",
            "How many days are there in {x}?",
            "How many days does {x} have?",
            "Tell me how many days {x} has.",
            "What is the number of days in {x}?",
            "How many days has {x}?",
            "Tell me how many days are in {x}.",
            "{x} has how many days?",
            "Tell me the number of days in {x}.",
        ),
    ),
    Relation(
        "the number of {x}",
        "There are {y}.",
        "minutes in an hour=60 minutes in an hour, hours in a day=24 hours in a day,"
        "seconds in a minute=60 seconds in a minute, months in a year=12 months in a year,"
        "seasons in a year=4 seasons in a year, weeks in a year=52 weeks in a year,"
        "metres in a kilometre=1000 metres in a kilometre, grams in a kilogram=1000 "
        "grams in a kilogram,"
        "centimetres in a metre=100 centimetres in a metre, years in a century=100 years "
        "in a century,"
        "years in a decade=10 years in a decade, millimetres in a centimetre=10 "
        "millimetres in a centimetre,"
        "continents on Earth=7 continents on Earth, oceans on Earth=5 oceans on Earth,"
        "planets in the solar system=8 planets in the solar system, bits in a byte=8 "
        "bits in a byte,"
        "letters in the alphabet=26 letters in the alphabet, fingers on a hand=5 fingers on a hand,"
        "strings on a violin=4 strings on a violin, colours in a rainbow=7 colours in a rainbow,"
        "eggs in a dozen=12 eggs in a dozen, players in a football team=11 players in a "
        "football team,"
        "bones in the human body=206 bones in the human body, teeth of an adult=32 teeth "
        "of an adult",
        (
            "How many {x}?",
            "What is the number of {x}?",
            "Tell me the number of {x}.",
            "What's the number of {x}?",
            "How many {x} are there?",
            "Do you know the number of {x}?",
            "Tell me how many {x} there are.",
            "Give me the number of {x}.",
            "Do you know how many {x} there are?",
        ),
    ),
    Relation(
        "the number of sides of {x}",
        "{x} has {y} sides.",
        "a triangle=3, a square=4, a rectangle=4, a pentagon=5, a hexagon=6, a heptagon=7,"
        "an octagon=8, a nonagon=9, a decagon=10",
        (
            "How many sides does {x} have?",
            "How many sides has {x}?",
            "What is the number of sides of {x}?",
            "{x} has how many sides?",
            "Tell me how many sides {x} has.",
            "Do you know how many sides {x} has?",
            "What number of sides does {x} have?",
            "Tell me the number of sides of {x}.",
            "How many sides are there in {x}?",
        ),
    ),
    Relation(
        "the home of {x}",
        "{x} lives in {y}.",
        "a bee=a hive, a bird=a nest, a spider=a web, a rabbit=a burrow, a lion=a den, a "
        "horse=a stable,"
        "a pig=a sty, a fish=water, a bear=a cave, an ant=an anthill, a beaver=a lodge",
        (
            "Where does {x} live?",
            "What is the home of {x}?",
            "In what does {x} live?",
            "Tell me where {x} lives.",
            "What is the home of {x} called?",
            "Do you know where {x} lives?",
            "Where is the home of {x}?",
            "Tell me the home of {x}.",
            "Where does {x} usually live?",
        ),
    ),
    Relation(
        "the tool: {x}",
        "We use {y} to {x}.",
        "cut paper=scissors, tell the time=a clock, measure temperature=a thermometer,"
        "write on paper=a pen, hit a nail=a hammer, sweep the floor=a broom, open a lock=a key,"
        "see the stars=a telescope, see tiny things=a microscope, eat soup=a spoon, cut wood=a saw,"
        "find north=a compass, dry our hands=a towel, stay dry in the rain=an umbrella,"
        "measure weight=a scale, take photos=a camera, sew cloth=a needle, dig a hole=a shovel",
        (
            "What do we use to {x}?",
            "Which tool do we use to {x}?",
            "What do you need to {x}?",
            "What does one use to {x}?",
            "What can I use to {x}?",
            "What do people use to {x}?",
            "Tell me what we use to {x}.",
            "Which thing do people use to {x}?",
            "Tell me which tool I need to {x}.",
            "What is used to {x}?",
        ),
    ),
    Relation(
        "the job of a {x}",
        "A {x} {y}.",
        "baker=bakes bread, teacher=teaches students, doctor=helps sick people, pilot=flies planes,"
        "farmer=grows food, sailor=works on a ship, tailor=makes clothes, painter=paints pictures,"
        "chef=cooks food, plumber=repairs pipes, carpenter=works with wood, "
        "librarian=takes care of books,"
        "dentist=takes care of teeth, firefighter=puts out fires, gardener=takes care of plants,"
        "mechanic=repairs cars, author=writes books, musician=plays music, judge=decides "
        "in a court,"
        "astronaut=travels to space, fisherman=catches fish, postman=brings letters",
        (
            "What does a {x} do?",
            "What is the job of a {x}?",
            "What is the work of a {x}?",
            "Tell me what the job of a {x} is.",
            "Tell me what a {x} does.",
            "What work does a {x} do?",
            "Do you know what a {x} does?",
            "What does a {x} do at work?",
            "What job does a {x} do?",
        ),
    ),
)
