"""Kinds of tools in the corpus: names, arguments, request templates, results.

Each kind has many tool and argument names, so the model must copy the names from the tool list. One
request template in five is held out for evaluation. In requests, {a}, {b} and {c} are the values of
the first, second and third argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .names import Draw, number, one_of
from .tool_values import (
    CURRENCIES,
    DEVICES,
    LANGUAGES,
    ROOMS,
    UNITS,
    city,
    clock,
    country,
    date,
    file_name,
    message,
    person,
    query,
    sentence,
    symbol,
    weather,
    word,
)


@dataclass(frozen=True)
class Slot:
    """An argument of a tool; its name is one of `names`, sampled per chat.

    Attributes:
        draw: sampler of values.
        type: JSON type.
        said: for an optional argument, sentences that state its value {u} after the request; empty
            for a required argument.
        enum: allowed values, listed in the schema; empty if any value is allowed.
    """

    names: tuple[str, ...]
    draw: Draw
    type: str = "string"
    said: tuple[str, ...] = ()
    enum: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolKind:
    """A kind of tool.

    Attributes:
        names, descriptions: alternatives, one of which is sampled per chat.
        topic: the requested information; empty for a tool that performs an action.
        result: alternative names of the result's field.
        values: sampler of the result; None for a tool that performs an action.
        answer: template of the final answer, with {topic} and the result {v}.
        tags: question types of `PLAIN` in tools.py that this tool could answer. In chats that
            list the tool, questions without a tool call have other types.
    """

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    slots: tuple[Slot, ...]
    requests: tuple[str, ...]
    topic: str = ""
    result: tuple[str, ...] = ("result",)
    values: Draw | None = None
    answer: str = "{topic} is {v}."
    tags: frozenset[str] = field(default_factory=frozenset)


KINDS = (
    ToolKind(
        ("get_weather", "weather", "get_current_weather", "weather_lookup", "check_weather",
         "current_weather", "weather_report"),
        ("Get the weather in a city.", "The weather in a place.", "Current weather.",
         "Returns the weather of a city.", "Tells the current weather."),
        (Slot(("city", "location", "place", "town", "city_name"), city),
         Slot(("unit", "units"), one_of("celsius, fahrenheit"),
              said=("In {u}.", "Use {u}.", "Please use {u}.", "I want {u}."),
              enum=("celsius", "fahrenheit"))),
        ("What is the weather in {a}?", "How is the weather in {a}?", "Weather in {a}?",
         "What's the weather in {a}?", "Tell me the weather in {a}.", "Is it raining in {a}?",
         "What is the weather like in {a}?", "How is the weather in {a} today?",
         "Do you know the weather in {a}?", "Please check the weather in {a}.",
         "What's the weather like in {a}?", "How warm is it in {a}?", "Is it cold in {a}?",
         "What is the weather like today in {a}?", "Give me the weather in {a}.",
         "What is the weather today in {a}?", "I want to know the weather in {a}.",
         "Do I need an umbrella in {a}?", "Tell me how the weather is in {a}.",
         "Look up the weather in {a}."),
        "the weather in {a}", ("weather", "condition", "conditions", "sky"), weather,
        tags=frozenset({"unknown"}),
    ),
    ToolKind(
        ("get_temperature", "temperature", "temperature_in", "read_temperature"),
        ("The temperature in a place.", "Get the temperature.", "Temperature in degrees."),
        (Slot(("city", "location", "place", "room"), city),),
        ("What is the temperature in {a}?", "How warm is it in {a}?", "How cold is it in {a}?",
         "How many degrees is it in {a}?", "Tell me the temperature in {a}.", "Temperature in {a}?",
         "Give me the temperature in {a}.", "What's the temperature in {a}?",
         "Do you know the temperature in {a}?"),
        "the temperature in {a}", ("temperature", "degrees", "value"), number(-20, 40),
        tags=frozenset({"unknown"}),
    ),
    ToolKind(
        ("get_time", "current_time", "local_time", "time_in", "get_local_time", "clock"),
        ("The local time in a city.", "Get the current time.", "Tells the time in a place."),
        (Slot(("city", "timezone", "place", "location", "zone"), city),),
        ("What time is it in {a}?", "What is the time in {a}?", "Time in {a}?",
         "Tell me the time in {a}.", "What's the time in {a}?", "How late is it in {a}?",
         "Do you know what time it is in {a}?", "Give me the time in {a}.",
         "Tell me what time it is in {a}.", "What is the local time in {a}?"),
        "the time in {a}", ("time", "local_time", "now"), clock,
    ),
    ToolKind(
        ("get_capital", "capital_of", "find_capital", "country_capital", "lookup_capital"),
        ("The capital of a country.", "Finds a country's capital."),
        (Slot(("country", "country_name", "nation"), country),),
        ("What is the capital of {a}?", "Which city is the capital of {a}?",
         "Name the capital of {a}.", "What's the capital of {a}?", "Tell me the capital of {a}.",
         "Capital of {a}?", "Give me the capital of {a}."),
        "the capital of {a}", ("capital", "city"), city, tags=frozenset({"capital"}),
    ),
    ToolKind(
        ("get_population", "population", "population_of", "count_people"),
        ("The number of people in a country.", "Get the population of a place."),
        (Slot(("country", "place", "name", "region"), country),),
        ("What is the population of {a}?", "How many people live in {a}?", "Population of {a}?",
         "How big is the population of {a}?", "Tell me the population of {a}.",
         "How many people are there in {a}?", "Give me the population of {a}."),
        "the population of {a}", ("population", "people", "count"), number(1000, 99999),
    ),
    ToolKind(
        ("get_stock_price", "stock_price", "share_price", "get_quote", "stock_quote"),
        ("The price of a share.", "Get the current stock price.", "Price of a stock."),
        (Slot(("symbol", "ticker", "stock", "share"), symbol),),
        ("What is the stock price of {a}?", "What does a share of {a} cost?", "Price of {a}?",
         "What is the price of {a}?", "Tell me the stock price of {a}.",
         "How much is a share of {a}?", "What is {a} trading at?", "Give me the price of {a}."),
        "the stock price of {a}", ("price", "value", "last"), number(2, 990),
        tags=frozenset({"unknown"}),
    ),
    ToolKind(
        ("convert_currency", "currency", "exchange", "exchange_money"),
        ("Converts money.", "Convert an amount from one currency into another."),
        (Slot(("amount", "value", "money"), number(1, 999), "number"),
         Slot(("from", "from_currency", "source"), CURRENCIES),
         Slot(("to", "to_currency", "target"), CURRENCIES)),
        ("Convert {a} {b} to {c}.", "How much is {a} {b} in {c}?", "What are {a} {b} in {c}?",
         "Change {a} {b} into {c}.", "Convert {a} {b} into {c}.", "{a} {b} in {c}?",
         "Please convert {a} {b} to {c}.", "Tell me how much {a} {b} are in {c}."),
        "{a} {b} in {c}", ("amount", "converted", "result"), number(1, 2000),
    ),
    ToolKind(
        ("convert_units", "unit_converter", "convert", "convert_unit"),
        ("Converts units.", "Convert a value from one unit into another."),
        (Slot(("value", "amount", "number", "quantity"), number(1, 999), "number"),
         Slot(("from_unit", "from", "unit"), UNITS),
         Slot(("to_unit", "to", "target_unit"), UNITS)),
        ("Convert {a} {b} to {c}.", "How many {c} are {a} {b}?", "What are {a} {b} in {c}?",
         "Change {a} {b} into {c}.", "Convert {a} {b} into {c}.", "{a} {b} in {c}?",
         "Please convert {a} {b} to {c}.", "How much is {a} {b} in {c}?"),
        "{a} {b} in {c}", ("result", "value", "converted"), number(1, 2000),
    ),
    ToolKind(
        ("translate", "translate_text", "translation", "get_translation"),
        ("Translates a text.", "Translate a text into a language."),
        (Slot(("text", "sentence", "words", "phrase"), message),
         Slot(("language", "target_language", "to", "target"), LANGUAGES)),
        ('Translate "{a}" into {b}.', 'How do you say "{a}" in {b}?', "Translate into {b}: {a}",
         'What is "{a}" in {b}?', 'Say "{a}" in {b}.', 'Please translate "{a}" to {b}.',
         'Can you translate "{a}" into {b}?', 'I need "{a}" in {b}.'),
        "the translation", ("translation", "text", "result"), word, tags=frozenset({"unknown"}),
    ),
    ToolKind(
        ("search", "web_search", "search_web", "find_pages", "google", "search_documents"),
        ("Searches the web.", "Search for pages.", "Finds documents for a query."),
        (Slot(("query", "q", "text", "search_query", "keywords"), query),),
        ("Search for {a}.", "Search the web for {a}.", "Find pages about {a}.", "Look up {a}.",
         "Find something about {a}.", "Search: {a}", "Please search for {a}.",
         "Look for {a} on the web.", "Can you search for {a}?", "Find me {a}."),
        "the result", ("result", "text", "snippet"), sentence, answer="{v}",
        tags=frozenset({"unknown"}),
    ),
    ToolKind(
        ("send_email", "send_message", "message", "send_mail", "send_text"),
        ("Sends a message to a person.", "Send an email.", "Writes to somebody."),
        (Slot(("to", "recipient", "name", "receiver"), person),
         Slot(("text", "message", "body", "content"), message)),
        ('Send {a} the message "{b}".', 'Write to {a}: "{b}"', 'Tell {a}: "{b}"',
         'Send "{b}" to {a}.', 'Send {a} an email that says "{b}".', 'Message {a}: "{b}"',
         'Please write "{b}" to {a}.', 'Send a message to {a}: "{b}"'),
        tags=frozenset({"unknown"}),
    ),
    ToolKind(
        ("set_timer", "start_timer", "timer", "countdown"),
        ("Starts a timer.", "Set a timer for some minutes."),
        (Slot(("minutes", "duration", "length"), number(1, 120), "integer"),),
        ("Set a timer for {a} minutes.", "Start a timer of {a} minutes.", "Timer for {a} minutes.",
         "Please set a timer: {a} minutes.", "I need a timer for {a} minutes.",
         "Wake me in {a} minutes.", "Count down {a} minutes."),
    ),
    ToolKind(
        ("set_alarm", "alarm", "wake_up", "create_alarm"),
        ("Sets an alarm.", "Set the alarm clock."),
        (Slot(("time", "at", "hour"), clock),),
        ("Set an alarm for {a}.", "Wake me up at {a}.", "Alarm at {a}.", "Set my alarm to {a}.",
         "I have to get up at {a}.", "Please set an alarm at {a}.", "Wake me at {a}."),
    ),
    ToolKind(
        ("create_event", "add_event", "add_reminder", "create_reminder", "remind_me"),
        ("Puts something into the calendar.", "Add a reminder.", "Creates an event."),
        (Slot(("title", "text", "what", "event"), message),
         Slot(("date", "day", "when"), date)),
        ('Remind me on {b}: "{a}"', 'Add "{a}" to my calendar on {b}.', 'Put "{a}" on {b}.',
         'Create the event "{a}" on {b}.', 'Note "{a}" for {b}.', 'Add a reminder for {b}: "{a}"',
         'On {b}, remind me of "{a}".', 'Plan "{a}" for {b}.'),
    ),
    ToolKind(
        ("get_phone_number", "phone_number", "find_phone", "phone_book", "lookup_phone"),
        ("The phone number of a person.", "Looks up a phone number."),
        (Slot(("name", "person", "who", "full_name"), person),),
        ("What is the phone number of {a}?", "Find the phone number of {a}.",
         "Look up the phone number of {a}.", "Give me {a}'s phone number.",
         "What is {a}'s number?", "How can I call {a}?", "Tell me the phone number of {a}.",
         "I need the phone number of {a}."),
        "the phone number of {a}", ("phone", "number", "phone_number"), number(10000, 999999),
    ),
    ToolKind(
        ("get_age", "age_of", "find_age", "person_age"),
        ("The age of a person.", "Tells how old somebody is."),
        (Slot(("name", "person", "who", "full_name"), person),),
        ("How old is {a}?", "What is the age of {a}?", "Tell me {a}'s age.",
         "What age is {a}?", "Find out how old {a} is.", "Look up the age of {a}.",
         "Tell me how old {a} is."),
        "the age of {a}", ("age", "years"), number(2, 99),
    ),
    ToolKind(
        ("order", "order_item", "buy", "place_order", "add_to_cart"),
        ("Orders something.", "Buys some of an item.", "Place an order."),
        (Slot(("item", "product", "name", "article"), one_of(
            "clocks, shoes, books, lamps, hats, toys, flowers, maps, candles, pens, mirrors, kites,"
            "boots, baskets, apples, cakes, eggs, tickets, chairs")),
         Slot(("quantity", "count", "amount", "number"), number(2, 60), "integer")),
        ("Order {b} {a}.", "Buy {b} {a}.", "I want {b} {a}.", "Please order {b} {a} for me.",
         "I would like to buy {b} {a}.", "Get me {b} {a}.", "Add {b} {a} to my order."),
    ),
    ToolKind(
        ("turn_on", "switch_on", "start_device", "device_on"),
        ("Turns a device on.", "Switches something on."),
        (Slot(("device", "name", "what", "item"), DEVICES),
         Slot(("room", "place", "where"), ROOMS)),
        ("Turn on the {a} in the {b}.", "Switch on the {a} in the {b}.",
         "Turn the {a} in the {b} on.", "Start the {a} in the {b}.",
         "Please turn on the {a} in the {b}.", "Switch the {a} in the {b} on."),
    ),
    ToolKind(
        ("play_music", "play_song", "play", "music_player"),
        ("Plays a song.", "Play music of an artist."),
        (Slot(("artist", "name", "singer", "song"), person),),
        ("Play {a}.", "Play a song of {a}.", "Play music by {a}.", "I want to hear {a}.",
         "Please play {a}.", "Put on some music by {a}.", "Let me hear {a}."),
    ),
    ToolKind(
        ("read_file", "open_file", "cat", "load_file", "get_file"),
        ("Reads a file.", "Get the text of a file."),
        (Slot(("path", "file", "filename", "name"), file_name),),
        ("Read the file {a}.", "Open {a}.", "What is in {a}?", "Show me {a}.",
         "What does {a} say?", "Read {a}.", "Show the file {a}.", "Please open the file {a}."),
        "the text", ("text", "content"), sentence, answer="{v}",
    ),
    ToolKind(
        ("get_date", "today", "current_date", "get_today"),
        ("Tells the date of today.", "Get the current date."),
        (),
        ("What is the date today?", "Which day is it today?", "What day is it?", "Today's date?",
         "Tell me the date of today.", "What date is it today?", "Which date is it?"),
        "the date of today", ("date", "today", "day"), date, tags=frozenset({"unknown"}),
    ),
    ToolKind(
        ("book_table", "reserve_table", "make_reservation", "reserve"),
        ("Books a table.", "Reserve a table in a restaurant."),
        (Slot(("people", "guests", "party_size"), number(2, 12), "integer"),
         Slot(("time", "at", "hour"), clock),
         Slot(("date", "day", "when"), date)),
        ("Book a table for {a} people on {c} at {b}.", "Reserve a table for {a} at {b} on {c}.",
         "I need a table for {a} on {c} at {b}.", "A table for {a} people at {b} on {c}, please.",
         "Please book a table on {c} at {b} for {a} people."),
    ),
    ToolKind(
        ("find_trains", "search_trains", "train_times", "get_connection", "find_flights"),
        ("Finds trains between two cities.", "Search a connection."),
        (Slot(("from", "origin", "start", "departure"), city),
         Slot(("to", "destination", "end", "arrival"), city)),
        ("Find a train from {a} to {b}.", "How do I get from {a} to {b}?",
         "When is the next train from {a} to {b}?", "I want to go from {a} to {b}.",
         "Trains from {a} to {b}?", "Look for a connection from {a} to {b}.",
         "I need a ticket from {a} to {b}."),
        "the next train from {a} to {b}", ("departure", "time", "next"), clock,
        answer="{topic} leaves at {v}.",
    ),
)  # fmt: skip
