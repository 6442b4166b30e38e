# Random operations on the function library, every reply and the whole state compared with a model
# (FenceTest::LibraryModel). Few keys, stamps and versions, these at the edges of what doubles can hold; evictions,
# FLUSHALL, new epochs, bulk changes, lost processes and callers in another database in between.
#
# Then the library is broken in several ways, each of which must be noticed: this test can fail.
#
# Environment: SEED (repeats a run), OPERATIONS (200000), SECONDS (at most about 60; 0: no limit).

use strict;
use warnings;

use FenceTest;
use FenceTest::LibraryModel;
use Test::More;
use Time::HiRes qw(time);

my $seed = $ENV{SEED} // int(rand(2**31));
my $operations = $ENV{OPERATIONS} // 200_000;
my $seconds = $ENV{SECONDS} // 60;

my %domains = (a => [ '1.t', '1.u' ], b => ['1.t']);
my @domains = map { my $ns = $_; map { [ $ns, $_ ] } @{ $domains{$ns} } } sort keys %domains;
my @fences = map { my ($ns, $name) = @$_; map { "$ns:f:$name:{$_}" } 1 .. ($ns eq 'a' ? 2 : 1) } @domains;
my @values = map { s/:f:/:v:/r } @fences;
my @stamps = qw(1.a 2.a 3.b);
my @edges = qw(0 1 9 10 99 100 9007199254740991 9007199254740992 9007199254740993 9007199254740994 123456789012345678
  999999999999999999 1000000000000000000 9223372036854775806 9223372036854775807);

my $redis = FenceTest::Redis->start;
my ($zero, $third, $clock);

sub one { return $_[ int rand @_ ]; }

# ---------------------------------------------------------------------------------------------------------------------
# Operations: commands in which "<...>" stands for something of the moment, so that a part of a run can be repeated
# ---------------------------------------------------------------------------------------------------------------------

my @versions_seen;

sub version
{
	my ($model, $fence) = @_;
	my $near = (split / /, $model->{keys}{$fence} // '')[1];

	if (rand() < 0.7 && defined $near && $near ne '-')
	{
		my $delta = one(-1, 0, 0, 1, 1, 2);
		return $near + $delta if $near + $delta >= 0 && $near <= 9223372036854775805;
	}
	return one(@edges, @versions_seen);
}

sub note_version { push @versions_seen, $_[0]; shift @versions_seen if @versions_seen > 5; return $_[0]; }

sub epoch { my ($ns) = @_; return rand() < 0.97 ? "<epoch $ns>" : one('1-ff', '999-0'); }

# Mostly a stamp that has a reservation of that fence.
sub stamp
{
	my ($model, $ns, $fence) = @_;
	my $pending = $model->{spaces}{$ns} ? $model->{spaces}{$ns}{pending}{$fence} : undef;

	return $pending && rand() < 0.8 ? one(sort keys %$pending) : one(@stamps);
}

# Each with its weight. They take model, namespace, domain, fence and its value, and return the words.
my @kinds = (
	[ 35 => sub { my ($m, $ns, $d, $f, $v) = @_; return qw(FCALL fence_get 2), $f, $v; } ],
	[ 5 => sub { my ($m, $ns, $d, $f) = @_; return qw(FCALL fence_check 1), $f, "<token $ns $d>", version($m, $f); } ],
	[ 3 => sub { my ($m, $ns, $d, $f) = @_; return qw(FCALL fence_current 1), $f; } ],
	[ 3 => sub { my ($m, $ns, $d, $f, $v) = @_; return qw(FCALL fence_get_ro 2), $f, $v; } ],
	[ 3 => sub { my ($m, $ns, $d, $f, $v) = @_; return qw(FCALL fence_peek 2), $f, $v; } ],
	[ 4 => \&invent_get_many ],
	[ 3 => \&invent_check_many ],
	[ 18 => \&invent_put ],
	[ 8 => \&invent_reserve ],
	[ 1 => sub { return qw(FCALL fence_reserve 2), @fences[ 0, 1 ], epoch('a'), one(@stamps),
		map { ('', version($_[0], $fences[$_])) } 0, 1; } ],
	[ 8 => \&invent_write ],
	[ 6 => sub { my ($m, $ns, $d, $f) = @_; return qw(FCALL fence_commit 1), $f, ending(@_), version($m, $f); } ],
	[ 1 => sub { return qw(FCALL fence_commit 2), @fences[ 0, 1 ], epoch('a'), one(@stamps),
		map { version($_[0], $fences[$_]) } 0, 1; } ],
	[ 4 => sub { my ($m, $ns, $d, $f) = @_; return qw(FCALL fence_release 1), $f; } ],
	[ 12 => sub { my ($m, $ns, $d, $f) = @_; return qw(FCALL fence_abort 1), $f, ending(@_); } ],
	[ 4 => sub { my ($m, $ns, $d, $f) = @_; return qw(FCALL fence_settle 0), $ns, $f, ending(@_),
		maybe(0.7, version($m, $f)); } ],
	[ 4 => sub { my ($m, $ns, $d, $f) = @_; return qw(FCALL fence_repair 1), $f, epoch($ns), version($m, $f),
		maybe(0.8, version($m, $f)); } ],
	[ 1 => sub { my ($m, $ns, $d) = @_; return qw(FCALL fence_domain_reserve 0), $ns, $d, epoch($ns), one(@stamps),
		one(('') x 9, '<id>'); } ],
	[ 3 => sub { my ($m, $ns, $d) = @_; return qw(FCALL fence_domain_commit 0), $ns, $d, epoch($ns), one(@stamps); } ],
	[ 4 => sub { my ($m, $ns, $d) = @_; return qw(FCALL fence_domain_abort 0), $ns, $d, epoch($ns), one(@stamps); } ],
	[ 5 => sub { my ($m, $ns, $d) = @_; return qw(FCALL fence_announce 0), $ns, epoch($ns), $d,
		one('<id>', '<id>', '<next id>'), one(qw(none notify pubsub stream)), one((['<grant>']) x 4, ['<former grant>'], [])->@*; } ],
	[ 3 => sub { my ($m, $ns) = @_; return invent_arm($ns, "<epoch $ns>", one(('<identity>') x 3, 'ff')); } ],
	[ 0.5 => sub { my ($m, $ns) = @_; return invent_arm($ns, '<next epoch>', '<identity>'); } ],
	[ 1 => sub { my ($m, $ns) = @_; return qw(FCALL fence_renew 0), "$ns:heartbeat", one(('<identity>') x 2, 'ff'),
		epoch($ns), deadline(), '{"idle_ms": 3600000, "fill_ms": ' . fill_lease() . '}'; } ],
	[ 1 => sub { my ($m, $ns) = @_; return qw(FCALL fence_renew 0), "$ns:heartbeat", '<identity>', epoch($ns), deadline(),
		'{"idle_ms": 3600000, "fill_ms": ' . fill_lease() . ', "grant": <next grant>}', slots(); } ],
	[ 0.3 => sub { my ($m, $ns) = @_; return qw(FCALL fence_disarm 0), $ns, one('us', 'us', 'them'), one(1, 2); } ],
	[ 2 => sub { return 'DEL', one(@fences, @values); } ],
	[ 0.2 => sub { return one('FLUSHALL', 'FLUSHDB'); } ],
	[ 1 => sub { my ($m, $ns, $d, $f) = @_; return 'SET', $f, '<old fence>'; } ],
	[ 0.05 => sub { return '<reload>'; } ]);

sub maybe { my ($chance, $what) = @_; return rand() < $chance ? $what : ''; }

# Epoch and stamp of a message that ends a reservation.
sub ending { my ($model, $ns, undef, $fence) = @_; return (epoch($ns), stamp($model, $ns, $fence)); }

# One to four fences, of any namespaces, the same perhaps twice.
sub invent_get_many
{
	my @chosen = map { int rand @fences } 0 .. int rand 4;

	return qw(FCALL fence_get_many), 2 * @chosen, map { ($fences[$_], $values[$_]) } @chosen;
}

sub invent_check_many
{
	my ($model) = @_;
	my @names = map { one(@fences) } 0 .. int rand 4;

	return qw(FCALL fence_check_many), scalar @names, @names,
	  map { /^(.*?):f:(.*?):/; ("<token $1 $2>", version($model, $_)) } @names;
}

sub invent_put
{
	my ($model, $ns, $domain, $fence, $value) = @_;
	my $token = rand() < 0.9 ? "<token $ns $domain>" : '<old token>';
	my $ticket = rand() < 0.8 ? "<ticket $fence>" : one('', '1', '2', '3');
	my $payload = one('', 'x', "a\nb", 'y' x 40);

	return qw(FCALL fence_put 2), $fence, $value, $token, $ticket, version($model, $fence), $payload, one(0, 0, 3_600_000);
}

sub invent_reserve
{
	my ($model, $ns, $domain, $fence) = @_;
	my $observed = maybe(0.5, version($model, $fence));

	return qw(FCALL fence_reserve 1), $fence, epoch($ns), one(@stamps), $observed, note_version(version($model, $fence));
}

# One to three operations on fences of one namespace, the same fence perhaps twice.
sub invent_write
{
	my ($model, $ns) = @_;
	my @names = map { one(grep { /^\Q$ns\E:/ } @fences) } 0 .. int rand 3;
	my @operations;

	foreach my $fence (@names)
	{
		my $op = one('r', 'g', 'g', 'c', 'v', 'v', 'd', 'a');
		my $reserves = $op =~ /[rg]/;
		push @operations, $op, $reserves ? one(@stamps) : stamp($model, $ns, $fence);
		push @operations, maybe(0.5, version($model, $fence)) if $reserves;
		push @operations, note_version(version($model, $fence)) if $op ne 'a';
		push @operations, one(0, 0, 3_600_000), one('', "z\n", 'y' x 40) if $op eq 'v';
		push @operations, one(1, 1, 2) if $op =~ /[gv]/;
	}
	return qw(FCALL fence_write 0), scalar @names, @names, epoch($ns), @operations;
}

# The fences' slots are 9842 and 5649.
sub slots { return one('', ('5649,9842') x 4, '5649-5649,9842', '5649', '9842', 'none'); }
sub fill_lease { return one(0, (3_600_000) x 4); }
sub deadline { return rand() < 0.1 ? one(0, 1) : $clock + 3_600_000 + int rand 1000; }

sub invent_arm
{
	my ($ns, $epoch, $identity) = @_;
	my $settings = sprintf '{"idle_ms": 3600000, "grant": %s, "fill_ms": %d, "domains": [%s], "reservations": [%s]}',
	  one('0', '<next grant>'), fill_lease(), join(', ', map { qq(["$_", <id>]) } grep { rand() < 0.9 } @{ $domains{$ns} }),
	  rand() < 0.2 ? sprintf '["%s", "%s"]', one(@{ $domains{$ns} }), one(@stamps) : '';

	return qw(FCALL fence_arm 1), "$ns:heartbeat", $identity, $epoch, deadline(), rand() < 0.25 ? slots() : '', one(('us') x 9, 'them'),
	  one((2) x 9, 1), $settings;
}

my $total = 0;
$total += $_->[0] foreach @kinds;

sub invent
{
	my ($model) = @_;
	my $at = rand $total;
	my $i = int rand @fences;
	my ($ns, $name) = $fences[$i] =~ /^(.*?):f:(.*?):/;

	foreach my $kind (@kinds)
	{
		return [ $kind->[1]->($model, $ns, $name, $fences[$i], $values[$i]) ] if ($at -= $kind->[0]) < 0;
	}
	die;
}

# Puts what is meant by "<...>" at this moment. $run: {model, old_fences, next_id, ...}
sub resolve
{
	my ($run, $word) = @_;
	my $model = $run->{model};

	return $word unless $word =~ /</;
	return $model->{identity} // 'none' if $word eq '<identity>';
	return $model->token($1, $2) // 'none' if $word =~ /^<token (\S+) (\S+)>$/;
	return ((split / /, $model->{keys}{$1} // 'x - 1')[2] // '') if $word =~ /^<ticket (\S+)>$/;
	return $model->{spaces}{$1} ? $model->{spaces}{$1}{epoch} : '1-aa' if $word =~ /^<epoch (\S+)>$/;
	return sprintf '%d-%x', $run->{epochs} += 1 + int rand 2, 255 + $run->{epochs} if $word eq '<next epoch>';
	return one('none', @{ $run->{old_tokens} }) if $word eq '<old token>';
	return one('x', 'x 5 ', @{ $run->{old_fences} }) if $word eq '<old fence>';
	return ++$run->{id} if $word eq '<next id>';
	return $run->{grant} if $word eq '<grant>';
	return $run->{grant} && $run->{grant} - 1 if $word eq '<former grant>';
	$word =~ s/<next grant>/++$run->{grant}/ge;
	$word =~ s/<id>/$run->{id} - (rand() < 0.2 ? int rand 2 : 0)/ge;
	return $word;
}

# ---------------------------------------------------------------------------------------------------------------------
# Running and comparing
# ---------------------------------------------------------------------------------------------------------------------

sub flat
{
	my ($reply) = @_;

	return join '|', map { $_ // '(nil)' } ref $reply eq 'ARRAY' ? @$reply : $reply;
}

sub remember
{
	my ($list, $what) = @_;

	push @$list, $what;
	shift @$list if @$list > 20;
	return;
}

sub start_over
{
	my ($library) = @_;
	my $run = { model => FenceTest::LibraryModel->new, library => $library, epochs => 0, id => 3, nonce => 0, grant => 0,
		old_fences => [], old_tokens => [], done => 0 };

	$zero = $redis->connect;
	$third = $redis->connect;
	$third->call('SELECT', 3);
	$zero->call('FLUSHALL');
	reload($run);
	return $run;
}

sub reload
{
	my ($run) = @_;

	$redis->load_library($run->{library});
	$run->{model}->forget;
	my $hello = $zero->call('FCALL', 'fence_hello', 0, 'a', sprintf '%016x', ++$run->{nonce});
	$run->{model}{identity} = $hello->[0];
	$clock //= $hello->[1];
	return;
}

# Tickets that the server chose take their places in the expected reply. Returns what is wrong with them, or nothing.
sub learn_tickets
{
	my ($model, $reply, $expected) = @_;
	my $new = FenceTest::LibraryModel::NEW_TICKET;
	my %given;

	return unless ref $reply eq 'ARRAY' && ref $expected;
	foreach my $i (0 .. $#$expected)
	{
		my ($fence) = $expected->[$i] =~ /^\Q$new\E (.*)$/ or next;
		unless (defined $given{$fence})
		{
			my $wrong = $model->learn_ticket($fence, $given{$fence} = $reply->[$i] // '');
			return $wrong if $wrong;
		}
		$expected->[$i] = $given{$fence};
	}
	return;
}

# Runs one operation on both sides. Returns what differs, or nothing.
sub step
{
	my ($run, $operation) = @_;
	my $model = $run->{model};
	my @words = map { resolve($run, $_) } @$operation;

	$run->{last} = \@words;
	$run->{done}++;
	if ($words[0] eq '<reload>')
	{
		reload($run);
		return;
	}

	# one in eight FCALLs comes from database 3
	my $elsewhere = $words[0] eq 'FCALL' && ++$run->{calls} % 8 == 0;
	my $reply = $elsewhere ? $third->attempt(@words) : undef;
	$zero->send(@words) unless $elsewhere;
	$zero->send('MGET', @fences, @values);
	# keys all, reservations of the operation's namespace (now and then of all)
	my ($ns) = "@words" =~ /\b([ab]):?/;
	my @spaces = defined $ns && $run->{done} % 16 ? ($ns) : ('a', 'b');
	$zero->send('FCALL', 'fence_pending', 0, $_, 0, 1000, '') foreach @spaces;
	$reply = $zero->reply unless $elsewhere;
	my $keys = $zero->reply;
	my %pending = map { $_ => $zero->reply } @spaces;

	my $expected = $model->run(@words);
	my $wrong = learn_tickets($model, $reply, $expected);
	return $wrong . ': ' . flat($reply) if defined $wrong;
	$reply->[4] = FenceTest::LibraryModel::SOME_MS
	  if ref $reply eq 'ARRAY' && @$reply == 5 && $reply->[3] eq 'busy' && $reply->[4] > 0 && $reply->[4] <= 3_600_000;
	# reasons of refusals and clock readings are not compared
	$#$reply = 0 if $words[1] && $words[1] =~ /arm|renew/ && ref $reply eq 'ARRAY';
	return 'answered ' . flat($reply) . ', expected ' . flat($expected) if flat($reply) ne flat($expected);
	return compare_state($run, $keys, \%pending);
}

sub compare_state
{
	my ($run, $keys, $pending) = @_;
	my $model = $run->{model};

	foreach my $domain ($model->unknown_tokens)
	{
		my ($ns, $name) = @$domain;
		my $token = $zero->call('FCALL', 'fence_status', 1, "$ns:f:$name:{1}")->[1];
		my $wrong = $model->learn_token($ns, $name, $token);
		return $wrong if $wrong;
		remember($run->{old_tokens}, $token);
	}
	foreach my $key (@fences, @values)
	{
		my ($is, $should) = (shift @$keys, $model->{keys}{$key});
		return "$key is " . flat($is) . ', expected ' . flat($should) if flat($is) ne flat($should);
	}
	foreach my $ns (sort keys %$pending)
	{
		my ($cursor, undef, @list) = @{ $pending->{$ns} };
		my @is;
		while (my (undef, $name, $stamp, $w) = splice @list, 0, 5)
		{
			push @is, "$name $stamp $w";
		}
		@is = sort @is;
		my @should = $model->reservations($ns);
		return "reservations are [@is], expected [@should]" if "@is" ne "@should";
	}
	return if $run->{done} % 16;

	my $fence = one(grep { defined } @{ $model->{keys} }{@fences});
	remember($run->{old_fences}, $fence) if defined $fence;
	foreach my $ns ('a', 'b')
	{
		my $is = join ' ', @{ $zero->call('FCALL', 'fence_hello', 0, $ns, 'ff') }[ 0, 4 .. 7 ];
		my $should = join ' ', $model->{identity}, $model->armed($ns);
		return "hello tells $is, expected $should" if $is ne $should;
		foreach my $name (@{ $domains{$ns} })
		{
			$is = $zero->call('FCALL', 'fence_status', 1, "$ns:f:$name:{1}")->[1];
			$should = $model->token($ns, $name) // '';
			return "the token of $ns $name is $is, expected $should" if $is ne $should;
		}
	}
	return;
}

# Runs up to that many operations (for that many seconds). Returns what went wrong, and all operations.
sub run_random
{
	my ($library, $most, $limit, $own_seed) = @_;
	my $run = start_over($library);
	my $deadline = $limit ? time() + $limit : undef;
	my (@done, $wrong);

	srand $own_seed;
	@versions_seen = ();
	foreach my $ns ('a', 'b')
	{
		push @done, [ qw(FCALL fence_arm 1), "$ns:heartbeat", '<identity>', '<next epoch>', $clock + 3_600_000, '', 'us', 1,
			'{"idle_ms": 3600000, "fill_ms": 3600000, "domains": [["1.t", <id>]], "reservations": []}' ];
		$wrong //= step($run, $done[-1]);
	}
	until (defined $wrong || @done >= $most || defined $deadline && @done % 256 == 0 && time() > $deadline)
	{
		push @done, invent($run->{model});
		$wrong = eval { step($run, $done[-1]) };
		$wrong = $@ if $@;
	}
	return ($wrong, \@done, $run);
}

# Whether these operations alone go wrong. The random choices inside are not the same: this is an attempt.
sub goes_wrong
{
	my ($library, $list) = @_;
	my $run = start_over($library);

	srand 1;
	for my $i (0 .. $#$list)
	{
		my $wrong = eval { step($run, $list->[$i]) };
		return ($wrong // $@, $i, $run->{last}) if defined $wrong || $@;
	}
	return;
}

# As few operations as a handful of attempts find that go wrong.
sub shrink
{
	my ($library, $done) = @_;
	my @setup = @{$done}[ 0, 1 ];
	my @list;

	foreach my $tail (30, 100, 300, 1000, 5000)
	{
		my $from = $#$done - $tail;
		@list = (@setup, @{$done}[ ($from < 2 ? 2 : $from) .. $#$done ]);
		my ($wrong, $last) = goes_wrong($library, \@list);
		if (defined $wrong)
		{
			$#list = $last;
			last;
		}
		@list = ();
	}
	my $deadline = time() + 20;
	for (my $size = int(@list / 2); $size >= 1; $size = int($size / 2))
	{
		for (my $from = 0; $from < @list && time() < $deadline;)
		{
			my @fewer = @list;
			splice @fewer, $from, $size;
			my ($wrong, $last) = goes_wrong($library, \@fewer);
			if (defined $wrong)
			{
				$#fewer = $last;
				@list = @fewer;
			}
			else
			{
				$from += $size;
			}
		}
	}
	return @list;
}

sub shown { return join ' ', map { my $word = $_ eq '' ? "''" : $_; $word =~ s/\n/\\n/g; $word } @_; }

# ---------------------------------------------------------------------------------------------------------------------

subtest 'the library does what the model does' => sub {
	my $library = FenceTest::Redis::library_source();
	my $started = time();
	note("SEED=$seed");
	my ($wrong, $done, $run) = run_random($library, $operations, $seconds, $seed);
	note(sprintf '%d operations in %.1f s', scalar @$done, time() - $started);
	is($wrong, undef, 'no difference') or do
	{
		diag("SEED=$seed, after " . @$done . ' operations: ' . shown(@{ $run->{last} }));
		diag('the last ones were:');
		diag('  ' . shown(@$_)) foreach @{$done}[ ($#$done > 20 ? $#$done - 20 : 0) .. $#$done ];
		my @list = shrink($library, $done);
		diag(@list ? 'a shorter way to a difference:' : 'a shorter way was not found');
		diag('  ' . shown(@$_)) foreach @list;
	};
	cmp_ok(scalar @$done, '>=', $operations / 4, 'a useful number of operations in the time allowed')
	  unless defined $wrong;
};

# What was broken, the text in fence.lua, what takes its place.
my @mutations = (
	[ 'versions are compared as doubles', 'if #a ~= #b then return #a < #b end',
		'if true then return tonumber(a) < tonumber(b) end' ],
	[ 'versions are compared as text', 'if #a ~= #b then return #a < #b end', '' ],
	[ '[4] commit creates a version',
		"if raw and (not v or (own and own.gen ~= domain.gen)) then\n    redis.call('DEL', fence)",
		"if not v then\n    write_fence(space, fence, domain, w, stamp)" ],
	[ '[2] put takes any ticket', 'elseif not ticket or ticket ~= args[2] then', 'elseif false then' ],
	[ 'put lowers a version', "if below(w, v) then\n      count", "if false then\n      count" ],
	[ '[6c] put does not look at the token', "if args[1] ~= domain.token then return refuse(domain, 'token') end", '' ],
	[ 'get overlooks reservations of rows', 'armed and (space.pending[fence] or domain.pendings > 0)',
		'armed and domain.pendings > 0' ],
	[ 'current overlooks reservations', 'if not may_answer(r, fence) or r.space.pending[fence] or r.domain.pendings > 0 then',
		'if not may_answer(r, fence) then' ],
	[ 'reserve leaves the ticket', "if not v and raw then\n    redis.call('DEL', fence)\n    raw = false", "if false then" ],
	[ 'a commit leaves a fence that was ahead', 'if own and own.over then v = nil end', '' ],
	[ '[1r] reserve drops without raising', 'write_fence(space, fence, domain, observed, \'\')', 'raw' ],
	[ 'a write does not see what it wrote before', '    if raw ~= was and i < n then changed[fence] = raw end', '' ],
	[ 'a commit drops the reservations of others', "while own and own.stamp ~= stamp do own = own.next end",
		"while own and own.stamp ~= stamp and own.next do own = own.next end" ],
	[ 'a commit drops the first reservation', "drop_pending(space, fence, own)\n  local other",
		"drop_pending(space, fence, own and space.pending[fence])\n  local other" ],
	[ 'a commit goes by what its reservation saw', 'if own and raw and own.raw == raw and own.gen', 'if own and own.gen' ],
	[ 'the lease runs on in the second of a disarm', 'until_ms, space.armed.safe_second = 0, nil', 'until_ms = 0' ],
	[ 'current reads where the caller is', "if not v then\n    redis.call('SELECT', '0')\n    v = read", "if false then\n    v = read" ],
	[ 'a writer writes where the caller is', 'if v or not read_anywhere then return', 'if true then return' ],
	[ 'reserve forgets a higher version of its own', 'if below(own.w, w) then own.w = w end', 'own.w = w' ],
	[ 'settle without a version leaves the fence', "redis.call('DEL', fence)\n    end_committed", 'end_committed' ],
	[ 'a commit stores without its reservation', 'local proves = payload and own and own.gen == domain.gen and own.grant == grant',
		'local proves = payload; own = own or {}' ],
	[ 'a commit stores in another generation', 'own and own.gen == domain.gen and own.grant', 'own and own.grant' ],
	[ 'a commit stores under another grant', 'domain.gen and own.grant == grant', 'domain.gen' ],
	[ 'a commit stores below a newer version', 'if proves and newest == w', 'if proves' ],
	[ 'a commit leaves a missing fence alone', 'if not v and proves then', 'if false then' ],
	[ 'a deletion takes a newer value', 'if value and not payload and newest == w', 'if value and not payload' ],
	[ 'every reader is asked to fill', 'if left > 0 and left <= lease then return left end', '' ],
	[ 'a fill lease outlives what it was for', 'fill and fill.what == what and fill.till', 'fill and fill.till' ],
	[ 'a fill lease cannot be released', 'r.space.filling[keys[1]], r.space.filled_before[keys[1]] = nil, nil', '' ],
	[ 'repair lowers', "redis.call('DEL', keys[1])", "write_fence(space, keys[1], domain, u, '')" ],
	[ '[6b] a bulk commit keeps the generation', "    new_gen(space, d)\n    domain_drop(d, args[4])", 'domain_drop(d, args[4])' ],
	[ '[c9] an arm repeated in one epoch wipes reservations', 'if a and a.epoch == epoch then', 'if false then' ],
	[ 'a slot that was taken away is still answered in', 'if not slots[slot] then space.slots[slot], space.lost[slot] = nil, nil end', '' ],
	[ 'a slot returns under its old generation', 'again or space.since[slot] ~= nil', 'again' ],
	[ 'readers are answered before the announcement', 'space.slots[slot] == true and space.since[slot] <= domain.carried',
		'space.slots[slot] == true' ],
	[ 'an announcement for a former grant', 'space.slots[slot], space.lost[slot], space.since[slot] = true, nil, grant',
		'space.slots[slot], space.lost[slot], space.since[slot] = true, nil, 0' ],
	[ 'writers are granted what is not here', "one == 'elsewhere' then\n      raws[i] = one", "one == 'elsewhere' then\n      raws[i] = false" ],
	[ 'renew lowers until', 'if till > armed.until_ms then armed.until_ms = till end', 'armed.until_ms = till' ],
	[ 'tokens do not depend on the generation', "identity .. ' ' .. generation)", "identity)" ],
	[ 'get_many overlooks a pair', 'for j, s in ipairs(answer) do reply[n + 1 + j] = s end', 'reply[n + 2] = answer[1]' ],
	[ 'the read-only get hands out tickets', "get(keys, args, 'read only')", 'get(keys, args)' ],
	[ 'peek takes what was replaced for fresh', "if newest and below(v, newest) then\n      freshness = 'stale'", "if newest and below(v, newest) then\n      freshness = 'fresh'" ],
	[ 'a stamp that is not the version\'s', "own and own.w == newest and names_writer(stamp) or ''", 'stamp' ],
	[ 'fences of the caller\'s database', "    redis.call('SELECT', '0')\n    return callback", '    return callback' ],
	[ 'tickets in the caller\'s database', "    redis.call('SELECT', '0')\n    both", '    both' ]);

subtest 'a broken library is noticed' => sub {
	my $most = 40_000;
	foreach my $mutation (@mutations)
	{
		my ($what, $text, $instead) = @$mutation;
		my $library = FenceTest::Redis::library_source();
		my $count = () = $library =~ /\Q$text\E/g;
		is($count, 1, "$what: the text to break is in fence.lua once") or next;
		$library =~ s/\Q$text\E/$instead/;
		my ($wrong, $done);
		# a walk comes by some of them seldom
		for (my $more = 0; $more < 20 && !defined $wrong; $more++)
		{
			($wrong, $done) = run_random($library, $most, 0, $seed + $more);
		}
		ok(defined $wrong, "$what: noticed")
		  and note(sprintf '  after %d operations: %s', scalar @$done, substr $wrong, 0, 150);
	}
};

done_testing();
