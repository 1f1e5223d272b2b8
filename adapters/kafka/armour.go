package kafka

// The broker limits commit metadata to 4,096 UTF-16 units. Base32768 puts 15 bits
// into each unit: 7,680 bytes, where base64 holds 3,072. The alphabet is assigned,
// normalised characters of the basic multilingual plane; the last character of a
// text that has at most 7 bits left comes from a second alphabet of 128, which is
// how the length is known without a prefix.
const (
	metadataChars = 4096
	stateBytes    = metadataChars * 15 / 8

	smallBase  = 0x2800 // 128 Braille patterns
	smallBits  = 7
	largeBits  = 15
	hanBase    = 0x4e00 // 20,992 Han characters
	hanCount   = 0x5200
	hangulBase = 0xac00 // 11,172 Hangul syllables
	hangulLen  = 11172
	extBase    = 0x3400 // the rest from Han extension A
	extCount   = 1<<largeBits - hanCount - hangulLen
)

func largeRune(v uint32) rune {
	switch {
	case v < hanCount:
		return rune(hanBase + v)
	case v < hanCount+hangulLen:
		return rune(hangulBase + v - hanCount)
	}
	return rune(extBase + v - hanCount - hangulLen)
}

func largeValue(r rune) (uint32, bool) {
	switch {
	case r >= hanBase && r < hanBase+hanCount:
		return uint32(r - hanBase), true
	case r >= hangulBase && r < hangulBase+hangulLen:
		return uint32(r-hangulBase) + hanCount, true
	case r >= extBase && r < extBase+extCount:
		return uint32(r-extBase) + hanCount + hangulLen, true
	}
	return 0, false
}

// armour writes b as text for commit metadata. Unused low bits are ones, so that
// every text has exactly one reading.
func armour(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	out := make([]rune, 0, (len(b)*8+largeBits-1)/largeBits)
	var acc, bits uint32
	for _, c := range b {
		acc, bits = acc<<8|uint32(c), bits+8
		if bits >= largeBits {
			bits -= largeBits
			out = append(out, largeRune(acc>>bits))
			acc &= 1<<bits - 1
		}
	}
	switch {
	case bits == 0:
	case bits <= smallBits:
		pad := smallBits - bits
		out = append(out, rune(smallBase+(acc<<pad|(1<<pad-1))))
	default:
		pad := largeBits - bits
		out = append(out, largeRune(acc<<pad|(1<<pad-1)))
	}
	return string(out)
}

// unarmour reads what armour wrote; false = written by somebody else.
func unarmour(s string) ([]byte, bool) {
	if len(s) > metadataChars*3 {
		return nil, false
	}
	out := make([]byte, 0, len(s)*5/8+1)
	var acc, bits uint32
	ended := false
	for _, r := range s {
		if ended {
			return nil, false // a small character is always the last
		}
		v, width, ok := uint32(r-smallBase), uint32(smallBits), r >= smallBase && r < smallBase+1<<smallBits
		if ended = ok; !ok {
			if v, ok = largeValue(r); !ok {
				return nil, false
			}
			width = largeBits
		}
		acc, bits = acc<<width|v, bits+width
		for bits >= 8 {
			bits -= 8
			out = append(out, byte(acc>>bits))
			acc &= 1<<bits - 1
		}
	}
	if acc != 1<<bits-1 || len(out) == 0 || armour(out) != s {
		return nil, false
	}
	return out, true
}
