-- A room with its settings and members. The members of a room are one value: they are read, cached and changed together.
CREATE TABLE room (
    id int PRIMARY KEY,
    name text NOT NULL,
    topic text NOT NULL DEFAULT '',
    colour text NOT NULL DEFAULT 'teal' CHECK (colour IN ('teal', 'indigo', 'amber', 'rose')),
    guests boolean NOT NULL DEFAULT false,
    version bigint NOT NULL DEFAULT 0
);
CREATE TABLE room_member (
    room_id int REFERENCES room ON DELETE CASCADE,
    member text,
    role text NOT NULL DEFAULT 'guest' CHECK (role IN ('owner', 'moderator', 'guest')),
    PRIMARY KEY (room_id, member)
);
CREATE INDEX ON room_member (room_id);

SELECT fence.attach('room');
SELECT fence.attach('room_member', key => '{room_id}', scope => 'group');

INSERT INTO room VALUES (7, 'Observatory', 'Clear skies on Thursday', 'indigo', true);
INSERT INTO room_member VALUES (7, 'Ada', 'owner'), (7, 'Grace', 'moderator'), (7, 'Linus', 'guest');
